//! Content encodings of request bodies.

use std::io::Write;

use flate2::write::{GzDecoder, ZlibDecoder};

use super::RequestError;

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Not at all.
    #[default]
    Identity,
    /// `gzip` or `x-gzip` (RFC 1952).
    Gzip,
    /// `deflate`: zlib (RFC 1950), as RFC 9110 has it.
    Deflate,
}

impl Encoding {
    /// What the value of a `content-encoding` header says.
    ///
    /// # Errors
    /// When it is none of these, or several of them over each other.
    pub fn of_header(value: &[u8]) -> Result<Self, RequestError> {
        let name = value.trim_ascii().to_ascii_lowercase();
        match name.as_slice() {
            b"" | b"identity" => Ok(Encoding::Identity),
            b"gzip" | b"x-gzip" => Ok(Encoding::Gzip),
            b"deflate" => Ok(Encoding::Deflate),
            _ => Err(RequestError::Encoding(String::from_utf8_lossy(&name).chars().take(64).collect())),
        }
    }
}

/// Takes decoded pieces.
pub(super) trait Parse {
    fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError>;
}

/// Hands on what comes out of a decoder, up to a limit: a small body can be a large one packed up.
#[derive(Debug)]
pub(super) struct Bounded<P> {
    parser: P,
    error: Option<RequestError>,
    left: u64,
    limit: u64,
}

impl<P: Parse> Write for Bounded<P> {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        let fed = match self.left.checked_sub(piece.len() as u64) {
            Some(left) => {
                self.left = left;
                self.parser.feed(piece)
            }
            None => Err(RequestError::TooLarge(self.limit)),
        };
        fed.map(|()| piece.len()).map_err(|error| {
            self.error = Some(error);
            std::io::ErrorKind::Other.into()
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A body on its way to the parser.
#[derive(Debug)]
pub(super) enum Decoder<P: Parse> {
    Identity(P),
    Gzip(Box<GzDecoder<Bounded<P>>>),
    Deflate(Box<ZlibDecoder<Bounded<P>>>),
}

impl<P: Parse> Decoder<P> {
    /// Decodes for `parser`, which gets at most `limit` bytes of a body that was encoded.
    pub(super) fn new(encoding: Encoding, parser: P, limit: u64) -> Self {
        let bounded = |parser| Bounded { parser, error: None, left: limit, limit };
        match encoding {
            Encoding::Identity => Decoder::Identity(parser),
            Encoding::Gzip => Decoder::Gzip(Box::new(GzDecoder::new(bounded(parser)))),
            Encoding::Deflate => Decoder::Deflate(Box::new(ZlibDecoder::new(bounded(parser)))),
        }
    }

    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), RequestError> {
        match self {
            Decoder::Identity(parser) => parser.feed(piece),
            Decoder::Gzip(decoder) => match decoder.write_all(piece) {
                Ok(()) => Ok(()),
                Err(error) => Err(blame(decoder.get_mut(), "gzip", &error)),
            },
            Decoder::Deflate(decoder) => match decoder.write_all(piece) {
                Ok(()) => Ok(()),
                Err(error) => Err(blame(decoder.get_mut(), "deflate", &error)),
            },
        }
    }

    /// The parser, when the body is complete.
    pub(super) fn finish(self) -> Result<P, RequestError> {
        match self {
            Decoder::Identity(parser) => Ok(parser),
            Decoder::Gzip(mut decoder) => match decoder.try_finish() {
                Ok(()) => decoder.finish().map(|bounded| bounded.parser).map_err(|error| broken("gzip", &error)),
                Err(error) => Err(blame(decoder.get_mut(), "gzip", &error)),
            },
            Decoder::Deflate(mut decoder) => match decoder.try_finish() {
                Ok(()) => decoder.finish().map(|bounded| bounded.parser).map_err(|error| broken("deflate", &error)),
                Err(error) => Err(blame(decoder.get_mut(), "deflate", &error)),
            },
        }
    }
}

fn blame<P>(bounded: &mut Bounded<P>, encoding: &'static str, error: &std::io::Error) -> RequestError {
    bounded.error.take().unwrap_or_else(|| broken(encoding, error))
}

fn broken(encoding: &'static str, error: &std::io::Error) -> RequestError {
    let why = match error.kind() {
        // The decoder takes nothing more. A second member is refused too: members that hold nothing would cost a hundred
        // times what their bytes cost otherwise.
        std::io::ErrorKind::WriteZero => "something comes after its end".to_owned(),
        _ => error.to_string(),
    };
    RequestError::Broken { encoding, why }
}
