//! What goes wrong with an endpoint, and when.

use anyhow::{Context, bail, ensure};
use engine_sim::model::{Nanos, nanos};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The process is gone: what it had is cut off, connections are refused, and its cache is empty afterwards.
    Dead,
    /// What it accepts meanwhile takes so many times as long.
    Slow(f64),
}

/// A fault of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Fault {
    /// Place of the endpoint.
    pub endpoint: usize,
    /// What is wrong with it.
    pub kind: Kind,
    /// When it begins.
    pub from: Nanos,
    /// When it is over.
    pub until: Nanos,
}

impl std::str::FromStr for Fault {
    type Err = anyhow::Error;

    /// `kill:2@60-90`: endpoint 2 is dead from second 60 to 90. `slow4:0@60-90`: endpoint 0 is four times as slow.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let parts = || {
            let (kind, rest) = text.split_once(':')?;
            let (endpoint, times) = rest.split_once('@')?;
            let (from, until) = times.split_once('-')?;
            Some((kind, endpoint.parse().ok()?, from.parse().ok()?, until.parse().ok()?))
        };
        let Some((kind, endpoint, from, until)): Option<(&str, usize, f64, f64)> = parts() else {
            bail!(
                "`{text}` is no fault: expected kill:ENDPOINT@FROM-UNTIL or slowFACTOR:ENDPOINT@FROM-UNTIL, in seconds"
            );
        };
        ensure!(from >= 0.0 && until > from, "fault `{text}`: {until} s is not after {from} s");
        let kind = match kind.strip_prefix("slow") {
            Some(factor) => {
                let factor: f64 = factor.parse().with_context(|| format!("fault `{text}`: `{factor}` is no factor"))?;
                ensure!(factor.is_finite() && factor >= 1.0, "fault `{text}`: a factor of {factor} is below 1");
                Kind::Slow(factor)
            }
            None if kind == "kill" => Kind::Dead,
            None => bail!("fault `{text}`: `{kind}` is neither kill nor slowFACTOR"),
        };
        Ok(Fault { endpoint, kind, from: nanos(from), until: nanos(until) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_or_say_what_is_wrong() {
        let fault: Fault = "slow2.5:3@1-2.5".parse().unwrap();
        assert_eq!(fault, Fault { endpoint: 3, kind: Kind::Slow(2.5), from: 1_000_000_000, until: 2_500_000_000 });
        assert_eq!("kill:0@0-1".parse::<Fault>().unwrap().kind, Kind::Dead);
        for (text, says) in
            [("kill:0@5-4", "after"), ("slow0.5:0@0-1", "below 1"), ("hang:0@0-1", "hang"), ("kill", "expected")]
        {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
