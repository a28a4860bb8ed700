//! HTTP below HTTP: bytes to a socket that no client library would send, and an upstream that keeps exactly what it got.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 64\r\nconnection: close\r\n\r\n\
{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n";
const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &[u8] = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n";

/// What a [`Recorder`] does with a request that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Answers a short completion and closes the connection.
    Answer,
    /// Says nothing until it is told something else.
    Hold,
    /// Closes the connection without an answer.
    Hangup,
    /// Streams events for ever, as fast as they are taken.
    Flood,
    /// Reads the head of a request and nothing after it.
    Deaf,
}

/// An upstream that reads one request per connection, and remembers the bytes.
#[derive(Debug)]
pub struct Recorder {
    addr: SocketAddr,
    behaviour: watch::Sender<Behaviour>,
    connections: Arc<Mutex<Vec<Vec<u8>>>>,
    _stop: DropGuard,
}

impl Recorder {
    /// Starts listening.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(behaviour: Behaviour) -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into())?;
        let listener = socket.listen(4096)?;
        let addr = listener.local_addr()?;
        let (behaviour, told) = watch::channel(behaviour);
        let (connections, stop) = (Arc::default(), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, told, Arc::clone(&connections))));
        Ok(Self { addr, behaviour, connections, _stop: stop.drop_guard() })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Does this from now on, also with the requests that it holds.
    pub fn set(&self, behaviour: Behaviour) {
        self.behaviour.send_replace(behaviour);
    }

    /// The bytes of each connection on which any came.
    #[must_use]
    pub fn seen(&self) -> Vec<Vec<u8>> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.iter().filter(|bytes| !bytes.is_empty()).cloned().collect()
    }

    /// As [`Self::seen`], and forgets them.
    #[must_use]
    pub fn take(&self) -> Vec<Vec<u8>> {
        let seen = self.seen();
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(Vec::clear);
        seen
    }
}

async fn accept(listener: TcpListener, told: watch::Receiver<Behaviour>, connections: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut serving = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while serving.try_join_next().is_some() {}
        let nth = {
            let mut connections = connections.lock().unwrap_or_else(PoisonError::into_inner);
            connections.push(Vec::new());
            connections.len() - 1
        };
        let record = Record { nth, connections: Arc::clone(&connections) };
        let told = told.clone();
        // A peer that goes away is no event here.
        serving.spawn(async move { drop(serve(stream, told, record).await) });
    }
}

/// Where the bytes of a connection go.
struct Record {
    nth: usize,
    connections: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Record {
    /// Adds bytes; true when no more need come: what is there is a whole request, or none at all.
    fn add(&self, bytes: &[u8]) -> bool {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(record) = connections.get_mut(self.nth) else { return true };
        record.extend_from_slice(bytes);
        !matches!(Request::parse(record), Ok(None))
    }
}

async fn serve(mut stream: TcpStream, mut told: watch::Receiver<Behaviour>, record: Record) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let complete = record.add(buffer.get(..read).unwrap_or_default());
        if *told.borrow() == Behaviour::Deaf {
            told.wait_for(|now| *now != Behaviour::Deaf).await?;
        }
        if complete {
            break;
        }
    }
    let behaviour = *told.wait_for(|now| *now != Behaviour::Hold).await?;
    match behaviour {
        Behaviour::Hangup => return Ok(()),
        Behaviour::Flood => {
            stream.write_all(STREAM).await?;
            let chunk = [format!("{:x}\r\n", EVENT.len()).as_bytes(), EVENT, b"\r\n"].concat().repeat(64);
            loop {
                stream.write_all(&chunk).await?;
            }
        }
        Behaviour::Answer | Behaviour::Hold | Behaviour::Deaf => stream.write_all(ANSWER).await?,
    }
    stream.shutdown().await?;
    // Whatever else comes was smuggled, and is kept.
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        record.add(buffer.get(..read).unwrap_or_default());
    }
}

/// A request as a strict reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, target and version.
    pub line: String,
    /// In their order, as they came.
    pub headers: Vec<(String, String)>,
    /// Without its framing.
    pub body: Vec<u8>,
    /// What follows the request on the same connection.
    pub rest: Vec<u8>,
}

impl Request {
    /// Reads one request; `None` when more must come.
    ///
    /// # Errors
    /// When the bytes are no request to a strict reader: a bare CR or LF, a NUL, a name that is no token, more than one length,
    /// or a length and a transfer coding.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(end) = find(bytes, b"\r\n\r\n") else { return Ok(None) };
        let (head, body) = (bytes.get(..end).unwrap_or_default(), bytes.get(end + 4..).unwrap_or_default());
        let head = std::str::from_utf8(head).context("a head that is not UTF-8")?;
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        ensure!(line.split(' ').count() == 3, "request line {line:?}");
        let mut headers = Vec::new();
        for line in lines {
            ensure!(!line.contains(['\r', '\n', '\0']), "header line {line:?}");
            let (name, value) = line.split_once(':').with_context(|| format!("header line {line:?}"))?;
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            ensure!(!name.is_empty() && name.bytes().all(is_token), "header name {name:?}");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let (lengths, codings) = (all(&headers, "content-length"), all(&headers, "transfer-encoding"));
        let framed = match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Some((Vec::new(), body)),
            ([length], []) => {
                ensure!(length.bytes().all(|byte| byte.is_ascii_digit()), "content-length {length:?}");
                body.split_at_checked(length.parse()?).map(|(body, rest)| (body.to_vec(), rest))
            }
            ([], ["chunked"]) => dechunked(body)?,
            _ => anyhow::bail!("lengths {lengths:?} and codings {codings:?}"),
        };
        Ok(framed.map(|(body, rest)| Self { line, headers, body, rest: rest.to_vec() }))
    }

    /// The values of a header.
    #[must_use]
    pub fn all(&self, wanted: &str) -> Vec<&str> {
        all(&self.headers, wanted)
    }
}

fn all<'a>(headers: &'a [(String, String)], wanted: &str) -> Vec<&'a str> {
    headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.as_str()).collect()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// A chunked body without trailers and what follows it; `None` when more must come.
fn dechunked(mut rest: &[u8]) -> Result<Option<(Vec<u8>, &[u8])>> {
    let mut body = Vec::new();
    loop {
        let Some(end) = find(rest, b"\r\n") else { return Ok(None) };
        let (size, after) = rest.split_at(end);
        let size = usize::from_str_radix(std::str::from_utf8(size)?, 16).context("size of a chunk")?;
        let Some((chunk, after)) = after.get(2..).unwrap_or_default().split_at_checked(size) else { return Ok(None) };
        body.extend_from_slice(chunk);
        let Some((line_end, after)) = after.split_at_checked(2) else { return Ok(None) };
        ensure!(line_end == b"\r\n", "a chunk longer than it says");
        if size == 0 {
            return Ok(Some((body, after)));
        }
        rest = after;
    }
}

/// Connects with a small receive buffer, so that what is not read soon stays with the sender.
///
/// # Errors
/// When the target does not accept.
pub async fn connect_narrow(target: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    Ok(socket.connect(target).await?)
}

/// Sends bytes on a connection of its own and returns everything that came back until the other side closed it, or until
/// `enough` says so.
///
/// # Errors
/// When the target does not accept.
pub async fn exchange(target: SocketAddr, bytes: &[u8], enough: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(target).await?;
    // A server may refuse before it has read everything.
    let _ = stream.write_all(bytes).await;
    Ok(read_until(&mut stream, enough).await)
}

/// Everything that comes until the other side closes the connection, or until `enough` says so.
pub async fn read_until(stream: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    while !enough(&answer) {
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => answer.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            _ => break,
        }
    }
    answer
}

/// The status of an HTTP/1 answer, once there is a line of it.
#[must_use]
pub fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.get(..find(answer, b"\r\n")?)?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.parse().ok()
}

/// Whether an answer with a `content-length`, or one that never has a body, is complete.
#[must_use]
pub fn is_complete(answer: &[u8]) -> bool {
    let Some(end) = find(answer, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(answer.get(..end).unwrap_or_default()).to_ascii_lowercase();
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_strict_reader_sees() {
        let parse = |text: &str| Request::parse(text.as_bytes());
        let request = parse("POST / HTTP/1.1\r\na: b\r\ncontent-length: 2\r\n\r\nhi!").unwrap().unwrap();
        assert_eq!((request.body.as_slice(), request.rest.as_slice()), (&b"hi"[..], &b"!"[..]));
        let request =
            parse("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nG").unwrap().unwrap();
        assert_eq!((request.body.as_slice(), request.rest.as_slice()), (&b"hi"[..], &b"G"[..]));
        assert_eq!(parse("POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nhi").unwrap(), None);
        for bad in [
            "a\r: b",
            "a b: c",
            "content-length: 1\r\ncontent-length: 1",
            "content-length: 1\r\ntransfer-encoding: chunked",
        ] {
            assert!(parse(&format!("POST / HTTP/1.1\r\n{bad}\r\n\r\nhi")).is_err(), "{bad:?}");
        }
    }
}
