//! Sessions of browsers. Pure: time and randomness are arguments.
//!
//! In memory only, so a restart signs everybody out; at most [`MOST`], of which the oldest goes when another one comes. What is
//! kept is the hash of the cookie, not the cookie: memory that is read by somebody else opens nothing.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

/// How long a session lasts.
pub(super) const LASTS: Duration = Duration::from_secs(12 * 3_600);
/// Sessions at a time.
pub(super) const MOST: usize = 1_000;
/// The cookie's name.
pub(super) const COOKIE: &str = "weighbridge_session";

/// What a browser keeps. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Cookie(String);

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(..)")
    }
}

impl Cookie {
    pub(super) fn from_random(random: [u8; 32]) -> Self {
        Cookie(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// As it is set; `secure`: the browser is to send it over TLS only.
    pub(super) fn to_header(&self, secure: bool) -> String {
        Self::header(&self.0, LASTS.as_secs(), secure)
    }

    /// As it is taken away.
    pub(super) fn cleared(secure: bool) -> String {
        Self::header("", 0, secure)
    }

    fn header(value: &str, seconds: u64, secure: bool) -> String {
        let secure = if secure { "; Secure" } else { "" };
        format!("{COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}")
    }

    /// The one in a `Cookie` header.
    pub(super) fn of_header(header: &[u8]) -> Option<&[u8]> {
        let mut pairs = header.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        pairs.find_map(|pair| pair.strip_prefix(COOKIE.as_bytes())?.strip_prefix(b"="))
    }
}

/// Names a session, and opens none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionId([u8; SHA256_OUTPUT_LEN]);

impl SessionId {
    pub(super) fn of(cookie: &[u8]) -> Self {
        let mut id = [0; SHA256_OUTPUT_LEN];
        id.copy_from_slice(digest(&SHA256, cookie).as_ref());
        SessionId(id)
    }
}

/// All sessions, with their ends.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<SessionId, Instant>);

impl Sessions {
    /// Another one begins.
    pub(super) fn begin(&mut self, cookie: &Cookie, now: Instant) {
        self.0.retain(|_, ends| *ends > now);
        while self.0.len() >= MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, ends)| **ends).map(|(id, _)| *id)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(SessionId::of(cookie.0.as_bytes()), now + LASTS);
    }

    /// When this one ends, if it has not.
    pub(super) fn ends(&self, id: SessionId, now: Instant) -> Option<Instant> {
        self.0.get(&id).copied().filter(|ends| *ends > now)
    }

    /// Its end.
    pub(super) fn end(&mut self, id: SessionId) {
        self.0.remove(&id);
    }

    /// The end of all.
    pub(super) fn end_all(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(nth: u16) -> Cookie {
        let mut random = [0; 32];
        random[..2].copy_from_slice(&nth.to_le_bytes());
        Cookie::from_random(random)
    }

    fn id(cookie: &Cookie) -> SessionId {
        let header = format!("a=b; {}", cookie.to_header(false));
        SessionId::of(Cookie::of_header(header.as_bytes()).unwrap())
    }

    #[test]
    fn a_session_ends_by_itself_or_when_it_is_told_to() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let (one, two) = (cookie(1), cookie(2));
        sessions.begin(&one, now);
        sessions.begin(&two, now);
        assert_eq!(sessions.ends(id(&one), now), Some(now + LASTS));
        assert_eq!(sessions.ends(id(&one), now + LASTS), None);
        assert_eq!(sessions.ends(id(&cookie(3)), now), None);
        sessions.end(id(&one));
        assert!(sessions.ends(id(&one), now).is_none() && sessions.ends(id(&two), now).is_some());
        sessions.end_all();
        assert_eq!(sessions.ends(id(&two), now), None);
    }

    #[test]
    fn of_too_many_the_oldest_goes() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        for nth in 0..=MOST as u16 {
            sessions.begin(&cookie(nth), now + Duration::from_secs(nth.into()));
        }
        let later = now + Duration::from_secs(2_000);
        let there = |nth| sessions.ends(id(&cookie(nth)), later).is_some();
        assert_eq!((sessions.0.len(), there(0), there(1), there(MOST as u16)), (MOST, false, true, true));
    }

    #[test]
    fn a_cookie_is_256_bits_that_only_the_prober_reads() {
        let set = cookie(7).to_header(true);
        let value = set.strip_prefix("weighbridge_session=").unwrap().split(';').next().unwrap();
        assert_eq!(value.len(), 64);
        assert!(set.ends_with("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200; Secure"), "{set}");
        assert!(!cookie(7).to_header(false).contains("Secure"));
        assert!(Cookie::cleared(false).contains("Max-Age=0"));
        assert_eq!(format!("{:?}", cookie(7)), "Cookie(..)");
        for (header, found) in [
            ("weighbridge_session=x", Some("x")),
            ("a=1; weighbridge_session=x; b=2", Some("x")),
            ("a=1;weighbridge_session=x", Some("x")),
            ("not_weighbridge_session=x", None),
            ("weighbridge_sessions=x", None),
            ("", None),
        ] {
            assert_eq!(Cookie::of_header(header.as_bytes()), found.map(str::as_bytes), "{header}");
        }
    }
}
