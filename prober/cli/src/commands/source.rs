//! The fleet as it changes, for commands that look on.

use std::time::Duration;

use serde_json::Value;

use crate::client::{Events, Prober};
use crate::exit::Failure;

/// The fleet as it changes: from the stream, and where there is none by asking.
pub(super) struct Source {
    prober: Prober,
    interval: Duration,
    events: Option<Events>,
    /// The prober has no stream for us.
    asks: bool,
    begun: bool,
}

impl Source {
    /// `interval`: how often it is asked where there is no stream, and tried again after a failure.
    pub(super) fn new(prober: Prober, interval: Duration) -> Self {
        Source { prober, interval, events: None, asks: false, begun: false }
    }

    /// The next state. After a failure, the next call tries anew. It may be given up at any time.
    pub(super) async fn next(&mut self) -> Result<Value, Failure> {
        if let Some(events) = &mut self.events {
            match events.next().await {
                Ok(Some(document)) => return Ok(document),
                Ok(None) => self.events = None,
                Err(failure) => {
                    self.events = None;
                    return Err(failure);
                }
            }
        }
        if std::mem::replace(&mut self.begun, true) {
            tokio::time::sleep(self.interval).await;
        }
        if !self.asks {
            match self.prober.events().await {
                Ok(mut events) => {
                    if let Some(document) = events.next().await? {
                        self.events = Some(events);
                        return Ok(document);
                    }
                }
                // An older prober, or too many who look.
                Err(failure) if ["no_route", "too_many_streams"].contains(&failure.code.as_str()) => self.asks = true,
                Err(failure) => return Err(failure),
            }
        }
        self.prober.get("/v1/fleet").await
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A prober that tells each stream one state, whose version counts the streams, and then says nothing more.
    pub(in crate::commands) async fn taciturn() -> Prober {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            for version in 1.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let asked = stream.read(&mut [0; 4096]).await.unwrap();
                assert!(asked > 0);
                let event = format!("event: fleet\ndata: {{\"version\": {version}}}\n\n");
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{event}");
                stream.write_all(answer.as_bytes()).await.unwrap();
                open.push(stream);
            }
        });
        Prober::new(url, None, None).unwrap()
    }

    #[tokio::test]
    async fn a_silent_stream_is_told_and_opened_anew() {
        let prober = taciturn().await.with_silence(Duration::from_secs(1));
        let mut source = Source::new(prober, Duration::from_millis(1));
        let looked = async {
            let first = source.next().await.unwrap();
            let silent = source.next().await.unwrap_err();
            (first, silent, source.next().await.unwrap())
        };
        let looked = tokio::time::timeout(Duration::from_secs(60), looked).await;
        let (first, silent, again) = looked.expect("nothing is told of a stream that is silent for good");
        assert_eq!((silent.code.as_str(), silent.message.as_str()), ("silent", "the prober's stream is silent for 1s"));
        assert_eq!((&first["version"], &again["version"]), (&1.into(), &2.into()));
    }
}
