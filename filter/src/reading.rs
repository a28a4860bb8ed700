//! A request whose body is still arriving.

use std::rc::Rc;

use weighbridge_routing::request::{self, Reader, Request, RequestError, Shape};
use weighbridge_routing::snapshot::Snapshot;

use crate::host::{self, Buffer, Headers};

/// Bytes taken from Envoy's buffer at once: enough to make the call cheap, little enough to keep memory flat.
const PIECE_BYTES: usize = 64 * 1024;

pub(crate) struct Reading {
    pub(crate) snapshot: Rc<Snapshot>,
    pub(crate) shape: Shape,
    /// Whether the client asked for the decision and may have it.
    pub(crate) explain: bool,
    /// Made for the first piece, which usually tells all that headers could.
    reader: Option<Reader>,
    /// Bytes of the body read so far.
    read: usize,
    /// Bytes of the body that have arrived.
    pub(crate) arrived: usize,
}

/// What stands in the way of reading on.
pub(crate) enum Unreadable {
    /// More than the operator allows, in bytes.
    TooLarge(u64),
    Request(RequestError),
}

impl Reading {
    pub(crate) fn new(snapshot: Rc<Snapshot>, shape: Shape, explain: bool) -> Self {
        Reading { snapshot, shape, explain, reader: None, read: 0, arrived: 0 }
    }

    /// Reads what has arrived. While more is to come, whole pieces are read only: a host call for every few bytes would
    /// cost more than the bytes.
    pub(crate) fn read(&mut self, body_size: usize, complete: bool) -> Result<(), Unreadable> {
        let limit = self.snapshot.max_body_bytes;
        while body_size as u64 <= limit && self.read < body_size && (complete || body_size - self.read >= PIECE_BYTES) {
            let length = PIECE_BYTES.min(body_size - self.read);
            let Some(piece) = host::buffer(Buffer::RequestBody, self.read, length).filter(|piece| !piece.is_empty())
            else {
                break;
            };
            self.read += piece.len();
            self.feed(&piece, limit).map_err(Unreadable::Request)?;
        }
        self.arrived = body_size;
        if body_size as u64 > limit { Err(Unreadable::TooLarge(limit)) } else { Ok(()) }
    }

    pub(crate) fn finish(self) -> Result<Request, RequestError> {
        self.reader.unwrap_or_else(|| Reader::new(self.shape, 0)).finish()
    }

    fn feed(&mut self, piece: &[u8], limit: u64) -> Result<(), RequestError> {
        if let Some(reader) = &mut self.reader {
            return reader.feed(piece).map_err(blame);
        }
        let prefix_bytes = self.snapshot.prefix_bytes;
        // JSON shows itself; what else a body may be only the headers tell, and asking for them costs.
        let mut reader = if self.shape != Shape::Transcriptions && piece.trim_ascii_start().starts_with(b"{") {
            Reader::new(self.shape, prefix_bytes)
        } else {
            let header = |name| host::header(Headers::Request, name).unwrap_or_default();
            let (content_type, content_encoding) = (header("content-type"), header("content-encoding"));
            let headers = request::Headers { content_type: &content_type, content_encoding: &content_encoding };
            Reader::with_headers(self.shape, prefix_bytes, headers, limit)?
        };
        reader.feed(piece).map_err(blame)?;
        self.reader = Some(reader);
        Ok(())
    }
}

/// What began like JSON and is none may be encoded in a way that is not supported: then that is what is wrong.
fn blame(error: RequestError) -> RequestError {
    let encoding = host::header(Headers::Request, "content-encoding").unwrap_or_default();
    request::encoding::Encoding::of_header(&encoding).err().unwrap_or(error)
}
