//! `health`: how to tell whether an endpoint may serve.

use std::time::Duration;

use super::checked::Check;
use super::raw;

/// The longest path in bytes.
const MAX_PATH: usize = 256;

/// How to check health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Where engines answer health checks.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// The longest that one check may take.
    pub timeout: Duration,
    /// Failures in a row that make an endpoint unhealthy.
    pub unhealthy_after: u32,
    /// Successes in a row that make it healthy again.
    pub healthy_after: u32,
    /// How long an engine may not have been seen to generate before it is asked for one token; `None`: it never is.
    pub generate_every: Option<Duration>,
    /// The longest that this may take.
    pub generate_timeout: Duration,
}

pub(super) fn health(raw: &raw::Health, check: &mut Check) -> Health {
    let printable = raw.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let good = raw.path.starts_with('/') && printable && raw.path.len() <= MAX_PATH;
    let shown: String = raw.path.chars().take(MAX_PATH).collect();
    check.that(good, "health.path", shown, "a path that begins with /, of at most 256 printable ASCII characters");
    check.that(raw.unhealthy_after > 0, "health.unhealthy_after", 0, "a number from 1");
    check.that(raw.healthy_after > 0, "health.healthy_after", 0, "a number from 1");
    let every = check.duration("health.generate_every", &raw.generate_every, Duration::ZERO);
    let often = !every.is_zero() && every < Duration::from_millis(100);
    check.that(!often, "health.generate_every", &raw.generate_every, "at least 100ms, or 0s for never");
    Health {
        path: raw.path.clone(),
        interval: check.duration("health.interval", &raw.interval, Duration::from_millis(50)),
        timeout: check.duration("health.timeout", &raw.timeout, Duration::from_millis(10)),
        unhealthy_after: raw.unhealthy_after,
        healthy_after: raw.healthy_after,
        generate_every: (!every.is_zero()).then_some(every),
        generate_timeout: check.duration("health.generate_timeout", &raw.generate_timeout, Duration::from_millis(100)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn read(health: &str) -> Result<Health, String> {
        let yaml = format!("health: {health}\npools: [{{name: p, models: [m]}}]");
        Config::parse(&yaml).map(|config| config.health).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_written_is_the_default() {
        let health = read("{}").unwrap();
        assert_eq!((health.path.as_str(), health.generate_every), ("/health", Some(Duration::from_secs(300))));
        assert_eq!(health.generate_timeout, Duration::from_secs(30));
        assert_eq!(read("{generate_every: 0s}").unwrap().generate_every, None);
        assert_eq!(read("{path: '/v1/health?ready=1'}").unwrap().path, "/v1/health?ready=1");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let long = format!("{{path: /{}}}", "x".repeat(MAX_PATH));
        for (wrong, named) in [
            ("{path: health}", "health.path is \"health\""),
            ("{path: ''}", "health.path"),
            ("{path: '/a b'}", "health.path"),
            ("{path: '/a#b'}", "health.path"),
            ("{path: '/\u{e4}'}", "health.path"),
            (long.as_str(), "health.path"),
            ("{generate_every: 1ms}", "health.generate_every is \"1ms\""),
            ("{generate_timeout: 0s}", "health.generate_timeout"),
            ("{unhealthy_after: 0}", "health.unhealthy_after"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
