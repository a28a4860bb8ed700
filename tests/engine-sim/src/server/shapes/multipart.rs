//! The little of `multipart/form-data` that a form with a file needs.

/// The boundary that a content type names, if it is multipart.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then_some(value.trim())
    })?;
    let value = value.trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}

/// The form's fields by name, in order; `None` when the body is broken.
pub(super) fn fields<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<(String, &'a [u8])>> {
    let first = format!("--{boundary}");
    let next = format!("\r\n--{boundary}");
    let mut rest = &body[find(body, first.as_bytes())? + first.len()..];
    let mut fields = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Some(fields);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let head = find(rest, b"\r\n\r\n")?;
        let content = &rest[head + 4..];
        let end = find(content, next.as_bytes())?;
        if let Some(name) = name(&String::from_utf8_lossy(&rest[..head])) {
            fields.push((name, &content[..end]));
        }
        rest = &content[end + next.len()..];
    }
}

fn name(head: &str) -> Option<String> {
    let disposition = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    let parameters = disposition.split(';').skip(1);
    let name = parameters.filter_map(|parameter| parameter.trim().strip_prefix("name=")).next()?;
    Some(name.trim_matches('"').to_owned())
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_taken_apart() {
        let boundary = boundary(r#"multipart/form-data; charset=x; boundary="b1""#).unwrap();
        let body = b"--b1\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b1\r\n\
            content-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav\r\n\r\n\
            RI\r\nFF--b\r\n--b1--\r\n";
        let fields = fields(body, &boundary).unwrap();
        assert_eq!(fields, [("model".to_owned(), b"m".as_slice()), ("file".to_owned(), b"RI\r\nFF--b".as_slice())]);
    }

    #[test]
    fn what_is_broken_is_none() {
        assert_eq!(boundary("application/json"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
        assert_eq!(fields(b"--b\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\nno end", "b"), None);
        assert_eq!(fields(b"", "b"), None);
    }
}
