//! Server-sent events: bytes in, events out. Pure.

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name; `message` where none is given.
    pub name: String,
    /// Its data.
    pub data: String,
}

/// Takes bytes as they come.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    name: String,
    data: Vec<String>,
}

impl Parser {
    /// The events that these bytes complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    events.extend(self.take(String::from_utf8_lossy(&line).trim_end_matches('\r')));
                }
                byte => self.line.push(*byte),
            }
        }
        events
    }

    fn take(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
            let name = if name.is_empty() { "message".to_owned() } else { name };
            return (!data.is_empty()).then(|| Event { name, data: data.join("\n") });
        }
        // A line that begins with a colon is a comment, which keeps the connection alive.
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => self.data.push(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_they_are_cut() {
        let text = ": hello\n\nretry: 1000\nid: 7\nevent: fleet\ndata: {\"a\":\ndata: \"é\"}\n\n:\n\ndata:x\r\n\r\ndata: unfinished\n";
        let expected = [
            Event { name: "fleet".into(), data: "{\"a\":\n\"é\"}".into() },
            Event { name: "message".into(), data: "x".into() },
        ];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let events: Vec<_> = text.as_bytes().chunks(size).flat_map(|chunk| parser.feed(chunk)).collect();
            assert_eq!(events, expected, "in pieces of {size}");
        }
    }
}
