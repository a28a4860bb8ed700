//! `signals`: how often engines are asked, and who tells how busy their GPUs are.

use std::time::Duration;

use super::checked::{Check, is_address};
use super::raw;

/// The longest that moving averages may look back: what is said of an endpoint is to be of this week.
const LONGEST_AVERAGE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// How to watch load.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// How often the engines' metrics are read, and filters report.
    pub interval: Duration,
    /// The time constant of the moving averages.
    pub average_over: Duration,
    /// Exporters of GPU figures.
    pub dcgm: Vec<Dcgm>,
}

/// A DCGM exporter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dcgm {
    /// Whose GPUs it tells of.
    pub of: Whose,
    /// Where its metrics are.
    pub url: String,
    /// Which of them, by index or UUID; all when empty.
    pub gpus: Vec<String>,
}

/// Whose GPUs an exporter tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Of every endpoint of this node.
    Node(String),
    /// Of this endpoint; goes before its node.
    Endpoint(String),
}

impl Signals {
    /// The exporter of an endpoint.
    #[must_use]
    pub fn dcgm_of(&self, id: &str, node: &str) -> Option<&Dcgm> {
        let own = self.dcgm.iter().find(|dcgm| matches!(&dcgm.of, Whose::Endpoint(known) if known == id));
        own.or_else(|| self.dcgm.iter().find(|dcgm| matches!(&dcgm.of, Whose::Node(known) if known == node)))
    }
}

pub(super) fn signals(raw: raw::Signals, check: &mut Check) -> Signals {
    let interval = check.duration("signals.interval", &raw.interval, Duration::from_millis(20));
    check.that(interval <= Duration::from_secs(10), "signals.interval", &raw.interval, "at most 10s");
    let average_over = check.duration("signals.average_over", &raw.average_over, Duration::from_secs(1));
    check.that(average_over <= LONGEST_AVERAGE, "signals.average_over", &raw.average_over, "at most 7days");
    let mut dcgm = Vec::new();
    for (nth, raw) in raw.dcgm.into_iter().enumerate() {
        let field = |name: &str| format!("signals.dcgm[{nth}].{name}");
        let good = raw.url.strip_prefix("http://").is_some_and(|rest| rest.split('/').next().is_some_and(is_address));
        check.that(good, field("url"), &raw.url, "http://host:port/path");
        let of = match (raw.node, raw.endpoint) {
            (Some(node), None) => Whose::Node(node),
            (None, Some(endpoint)) => Whose::Endpoint(endpoint),
            (node, _) => {
                let stands = if node.is_some() { "node and endpoint" } else { "neither" };
                check.that(false, format!("signals.dcgm[{nth}]"), stands, "either node or endpoint");
                continue;
            }
        };
        dcgm.push(Dcgm { of, url: raw.url, gpus: raw.gpus });
    }
    Signals { interval, average_over, dcgm }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn read(signals: &str) -> Result<Config, String> {
        let yaml = format!("signals: {signals}\npools: [{{name: p, models: [m]}}]");
        Config::parse(&yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn an_endpoints_own_exporter_goes_before_its_nodes() {
        let signals = read(
            "{dcgm: [{node: a, url: 'http://a:9400/metrics'}, {endpoint: e, url: 'http://b:9400/metrics', gpus: ['1']}]}",
        );
        let signals = signals.unwrap().signals;
        let url = |id, node| signals.dcgm_of(id, node).map(|dcgm| dcgm.url.as_str());
        assert_eq!(url("e", "a"), Some("http://b:9400/metrics"));
        assert_eq!((url("f", "a"), url("f", "b")), (Some("http://a:9400/metrics"), None));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (wrong, named) in [
            ("{interval: 1ms}", "signals.interval"),
            ("{interval: 1h}", "signals.interval"),
            ("{average_over: 0s}", "signals.average_over"),
            ("{dcgm: [{node: a, url: nowhere}]}", "signals.dcgm[0].url"),
            ("{dcgm: [{url: 'http://a:1/m'}]}", "signals.dcgm[0] is \"neither\""),
            ("{dcgm: [{node: a, endpoint: b, url: 'http://a:1/m'}]}", "signals.dcgm[0] is \"node and endpoint\""),
            ("{dcgm: [{node: a}]}", "signals.dcgm[0].url is missing"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
