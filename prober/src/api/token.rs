//! The token of the API: what stands in its file, and what is derived from it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ring::hmac;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::sessions::{Cookie, SessionId, Sessions};
use crate::config::{FieldError, Stands};
use crate::reload::{Read, Reload};
use crate::service::Service;

/// What a reports token is derived for.
const REPORTS: &[u8] = b"weighbridge reports of filters 1";
/// Its length in characters, at least. Shorter ones can be guessed.
const LEAST: usize = 16;
/// And at most: the file may be the wrong one.
const MOST: usize = 1024;
/// So long Envoys may take to hear of a new token: until then their reports are taken with the one before.
const HEAR: Duration = Duration::from_secs(60);

/// A token that requests must bring. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the file's first line.
    ///
    /// # Errors
    /// When it cannot be read, or what stands there is no token.
    pub fn read(path: &Path) -> Result<Self, FieldError> {
        let wrong = |expected: String| FieldError {
            field: "api.token_file".into(),
            stands: Stands::Value(path.display().to_string()),
            expected,
        };
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("a file that can be read ({error})")))?;
        Token::parse(&text).map_err(|found| {
            wrong(format!(
                "a token in its first line: {LEAST} to {MOST} printable characters without spaces; it has {found}"
            ))
        })
    }

    /// The first line; else what is wrong with it, which never shows it.
    fn parse(text: &str) -> Result<Self, String> {
        let token = text.lines().next().unwrap_or_default().trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("other characters".into());
        }
        match token.len() {
            LEAST..=MOST => Ok(Token(token.as_bytes().to_vec())),
            length => Err(format!("{length}")),
        }
    }

    /// The token of the filters' reports: HMAC-SHA256 of this one, in hexadecimal. Every Envoy gets it with its snapshot, and
    /// it admits to nothing else; probers with the same token derive the same one, so any of them takes any Envoy's reports.
    #[must_use]
    pub fn for_reports(&self) -> String {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), REPORTS);
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether `given` is it. In constant time for everything of its length: how long a comparison takes must not tell how
    /// much of a guess was right.
    fn is(&self, given: &[u8]) -> bool {
        given.ct_eq(&self.0).into()
    }
}

/// By what a request was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticket {
    /// The token, when it was this one in turn.
    Token {
        /// Of how many.
        turn: u64,
    },
    /// A session.
    Session(SessionId),
}

/// What the API asks for.
#[derive(Debug, Clone)]
struct Tokens {
    /// How many there have been before.
    turn: u64,
    operators: Token,
    reports: Token,
    /// The reports token before, and until when it is good.
    former: Option<(Token, Instant)>,
}

/// The tokens in force, as the file has them.
#[derive(Debug)]
pub struct Guard {
    path: PathBuf,
    tokens: RwLock<Arc<Tokens>>,
    sessions: Mutex<Sessions>,
    /// Rises whenever a token or a session is over.
    over: watch::Sender<u64>,
}

impl Guard {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or what stands there is no token.
    pub fn read(path: &Path) -> Result<Self, FieldError> {
        let operators = Token::read(path)?;
        let reports = Token(operators.for_reports().into_bytes());
        let tokens = Tokens { turn: 0, operators, reports, former: None };
        let tokens = RwLock::new(Arc::new(tokens));
        Ok(Guard { path: path.to_owned(), tokens, sessions: Mutex::default(), over: watch::Sender::default() })
    }

    /// The token of the filters' reports.
    #[must_use]
    pub fn for_reports(&self) -> String {
        String::from_utf8_lossy(&self.tokens().reports.0).into_owned()
    }

    /// Whether a request with this token is let in; `report`: it is one that filters send.
    pub(super) fn admits(&self, given: &[u8], report: bool, now: Instant) -> Option<Ticket> {
        let tokens = self.tokens();
        let former = tokens.former.as_ref().is_some_and(|(token, until)| now < *until && token.is(given));
        let good = tokens.operators.is(given) || (report && (tokens.reports.is(given) || former));
        good.then_some(Ticket::Token { turn: tokens.turn })
    }

    /// Whether a request of this session is let in.
    pub(super) fn of_session(&self, id: SessionId, now: Instant) -> Option<Ticket> {
        self.sessions().ends(id, now).map(|_| Ticket::Session(id))
    }

    /// Begins a session, when this is the token.
    pub(super) fn sign_in(&self, given: &[u8], cookie: &Cookie, now: Instant) -> bool {
        // Locked first: no session begins with a token that has just been turned.
        let mut sessions = self.sessions();
        let good = self.tokens().operators.is(given);
        if good {
            sessions.begin(cookie, now);
        }
        good
    }

    /// Ends a session.
    pub(super) fn sign_out(&self, id: SessionId) {
        self.sessions().end(id);
        self.over.send_modify(|count| *count += 1);
    }

    /// Waits until this lets nobody in any more.
    pub(super) async fn over(&self, ticket: Ticket) {
        let mut over = self.over.subscribe();
        loop {
            let ends = match ticket {
                Ticket::Token { turn } if turn != self.tokens().turn => return,
                Ticket::Token { .. } => None,
                Ticket::Session(id) => match self.sessions().ends(id, Instant::now()) {
                    None => return,
                    ends => ends,
                },
            };
            let ended = async {
                match ends {
                    None => std::future::pending().await,
                    Some(ends) => tokio::time::sleep_until(ends.into()).await,
                }
            };
            tokio::select! {
                () = ended => return,
                // The sender is ours, and outlives this.
                _ = over.changed() => {}
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.tokens.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another token in force.
    fn turn(&self, operators: Token, now: Instant) {
        let reports = Token(operators.for_reports().into_bytes());
        let before = self.tokens();
        let former = Some((before.reports.clone(), now + HEAR));
        let tokens = Tokens { turn: before.turn + 1, operators, reports, former };
        let mut sessions = self.sessions();
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
        // Whoever knew the old one is to show the new one.
        sessions.end_all();
        drop(sessions);
        self.over.send_modify(|count| *count += 1);
    }
}

impl Reload for Guard {
    fn reload(&self, service: &Service) -> Vec<(String, Result<Read, String>)> {
        vec![("api.token_file".into(), self.read_again(service))]
    }
}

impl Guard {
    fn read_again(&self, service: &Service) -> Result<Read, String> {
        let token = Token::read(&self.path).map_err(|error| error.to_string())?;
        if token == self.tokens().operators {
            return Ok(Read::Same);
        }
        self.turn(token, Instant::now());
        service.change(|registry| registry.set_reports_token(self.for_reports()));
        Ok(Read::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_token_is_said_without_showing_it() {
        assert_eq!(Token::parse("0123456789abcdef\nnot this").unwrap().0, b"0123456789abcdef");
        for (text, said) in [
            ("", "0"),
            ("secret", "6"),
            ("\n0123456789abcdef", "0"),
            ("0123456789 abcdef", "other"),
            ("0123456789abcdéf", "other"),
        ] {
            let error = Token::parse(text).unwrap_err();
            assert!(error.contains(said) && !error.contains("secret"), "{text}: {error}");
        }
        assert!(Token::parse(&"x".repeat(MOST + 1)).is_err());
    }

    #[test]
    fn envoys_may_take_their_time_to_hear_of_a_new_token_and_operators_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        let guard = Guard::read(&path).unwrap();
        let (old, now) = (guard.for_reports(), Instant::now());
        guard.turn(Token(b"fedcba9876543210".to_vec()), now);
        let new = guard.for_reports();
        assert_ne!(old, new);
        for (given, report, after, admitted) in [
            ("fedcba9876543210", false, Duration::ZERO, true),
            ("0123456789abcdef", false, Duration::ZERO, false),
            ("0123456789abcdef", true, Duration::ZERO, false),
            (&new, true, HEAR, true),
            (&new, false, Duration::ZERO, false),
            (&old, true, Duration::ZERO, true),
            (&old, false, Duration::ZERO, false),
            (&old, true, HEAR, false),
            ("", true, Duration::ZERO, false),
        ] {
            assert_eq!(
                guard.admits(given.as_bytes(), report, now + after).is_some(),
                admitted,
                "{given} {report} {after:?}"
            );
        }
    }
}
