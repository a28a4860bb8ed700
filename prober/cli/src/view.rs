//! The fleet as text. Pure.

use anstyle::Style;

use crate::fleet::{Alarm, Endpoint, Fleet};
use crate::output::plain;
use crate::paint::{BAD, FAINT, GOOD, HEAD, PLAIN, WARN, in_style};
use crate::table::{Cell, Table, bar};

/// How wide the bar of a weight is.
const BAR: usize = 8;

/// Everything, no line wider than `width`.
#[must_use]
pub fn everything(fleet: &Fleet, width: usize) -> Vec<String> {
    let mut lines = vec![summary(fleet)];
    for table in [pools(fleet), endpoints(fleet), envoys(fleet)] {
        if !table.is_empty() {
            lines.push(String::new());
            lines.extend(table.lines(width));
        }
    }
    if !fleet.alarms.is_empty() {
        lines.push(String::new());
        lines.push(in_style(HEAD, "ALARMS"));
        lines.extend(fleet.alarms.iter().map(|alarm| cut(&told(alarm), width, BAD)));
    }
    lines
}

/// Whether somebody should look.
#[must_use]
pub fn is_well(fleet: &Fleet) -> bool {
    fleet.ready && fleet.alarms.is_empty()
}

fn summary(fleet: &Fleet) -> String {
    let state = if fleet.ready { in_style(GOOD, "ready") } else { in_style(WARN, "not ready") };
    let leads = if fleet.leads { "measures" } else { "another prober measures" };
    let connected = fleet.envoys.iter().filter(|envoy| envoy.connected).count();
    let current =
        fleet.envoys.iter().filter(|envoy| envoy.connected && envoy.applied_version == Some(fleet.version)).count();
    let alarms = match fleet.alarms.len() {
        0 => in_style(GOOD, "no alarm"),
        1 => in_style(BAD, "1 alarm"),
        many => in_style(BAD, &format!("{many} alarms")),
    };
    format!("{state}, {leads}, {current} of {connected} Envoys have snapshot {}, {alarms}", fleet.version)
}

fn cut(text: &str, width: usize, style: Style) -> String {
    in_style(style, &text.chars().take(width).collect::<String>())
}

fn told(alarm: &Alarm) -> String {
    let subject = alarm.subject.id.as_deref().unwrap_or("prober");
    format!("{} ({}): {}", plain(&alarm.code), plain(subject), plain(&alarm.message).replace('\n', " "))
}

/// A figure, or a dash where there is none.
fn figure(value: Option<f64>) -> Cell {
    match value {
        None => Cell::number("-").style(FAINT),
        Some(value) if value.abs() < 10.0 => Cell::number(format!("{value:.1}")),
        Some(value) => Cell::number(format!("{value:.0}")),
    }
}

fn pools(fleet: &Fleet) -> Table {
    let mut table = Table::new(&["POOL", "MODELS", "POLICY", "MEDIAN TOK/S", "IN FLIGHT", "WAITING"]);
    for pool in &fleet.pools {
        let full = pool.capacity > 0 && pool.in_flight >= pool.capacity;
        table.row(vec![
            Cell::new(plain(&pool.name)),
            Cell::new(plain(&pool.models.join(", "))),
            Cell::new(plain(&pool.policy)),
            figure(pool.median_tps),
            Cell::number(format!("{}/{}", pool.in_flight, pool.capacity)).style(if full { WARN } else { PLAIN }),
            Cell::number(pool.waiting.to_string()).style(if pool.waiting > 0 { WARN } else { PLAIN }),
        ]);
    }
    table
}

/// What an endpoint is doing, and how good that is.
fn state(endpoint: &Endpoint) -> (String, Style) {
    if endpoint.burst.as_ref().is_some_and(|burst| burst.elsewhere) {
        return ("probing by another prober".to_owned(), WARN);
    }
    if let Some(burst) = &endpoint.burst {
        return (format!("probing: {}", crate::progress::words(&burst.phase)), WARN);
    }
    if let Some(drain) = &endpoint.drain {
        let left = drain.in_flight.map_or_else(String::new, |left| format!(", {left} left"));
        return (format!("{}{left}", plain(&drain.state)), WARN);
    }
    match endpoint.state.as_str() {
        "ready" if endpoint.ejected > 0 => (format!("ejected by {}", endpoint.ejected), BAD),
        "ready" if endpoint.cooling_down > 0 => (format!("cooling down at {}", endpoint.cooling_down), WARN),
        "ready" => ("ready".to_owned(), GOOD),
        "unhealthy" => ("unhealthy".to_owned(), BAD),
        other => (plain(other), WARN),
    }
}

fn endpoints(fleet: &Fleet) -> Table {
    let head =
        ["ENDPOINT", "POOL", "STATE", "WEIGHT", "", "SOURCE", "TOK/S", "IN FLIGHT", "WAITING", "TTFT MS", "ERRORS"];
    let mut table = Table::new(&head);
    let heaviest = fleet.endpoints.iter().map(|endpoint| endpoint.weight).fold(f64::MIN_POSITIVE, f64::max);
    let mut sorted: Vec<_> = fleet.endpoints.iter().collect();
    sorted.sort_by(|one, other| {
        one.pool.cmp(&other.pool).then(other.weight.total_cmp(&one.weight)).then(one.id.cmp(&other.id))
    });
    for endpoint in sorted {
        let (state, style) = state(endpoint);
        let averages = &endpoint.signals.averages;
        let in_flight = endpoint.in_flight.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let waiting = endpoint.signals.waiting;
        table.row(vec![
            Cell::new(plain(&endpoint.id)),
            Cell::new(plain(&endpoint.pool)),
            Cell::new(state).style(style),
            Cell::number(format!("{:.2}", endpoint.weight)),
            Cell::new(bar(endpoint.weight / heaviest, BAR)).style(FAINT),
            Cell::new(plain(&endpoint.weight_source)).style(if endpoint.pin.is_some() { WARN } else { PLAIN }),
            figure(endpoint.throughput_tps),
            Cell::number(format!("{in_flight}/{}", endpoint.max_in_flight)),
            Cell::number(waiting.map_or_else(|| "-".to_owned(), |waiting| waiting.to_string())),
            figure(averages.ttft_ms),
            match averages.error_rate {
                Some(rate) => {
                    Cell::number(format!("{:.1} %", rate * 100.0)).style(if rate >= 0.05 { BAD } else { PLAIN })
                }
                None => Cell::number("-").style(FAINT),
            },
        ]);
    }
    table
}

fn envoys(fleet: &Fleet) -> Table {
    let mut table = Table::new(&["ENVOY", "STATE", "SNAPSHOT"]);
    for envoy in &fleet.envoys {
        let (state, style) = match (envoy.connected, envoy.applied_version) {
            (false, _) => ("away", BAD),
            // Why is among the alarms.
            _ if envoy.refuses.is_some() => ("REFUSES the snapshot", BAD),
            (true, Some(version)) if version == fleet.version => ("has the snapshot", GOOD),
            (true, Some(_)) => ("behind", WARN),
            (true, None) => ("has none yet", WARN),
        };
        let version = envoy.applied_version.map_or_else(|| "-".to_owned(), |version| version.to_string());
        table.row(vec![
            Cell::new(plain(&envoy.node_id).replace('\n', "\u{fffd}")),
            Cell::new(state).style(style),
            Cell::new(version),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> Fleet {
        Fleet::of(&serde_json::json!({
            "version": 7, "ready": true, "leads": true,
            "pools": [{"name": "p", "models": ["m", "default"], "policy": "p2c", "median_tps": 730.0, "capacity": 48, "in_flight": 12, "waiting": 2}],
            "endpoints": [
                {"id": "slow", "pool": "p", "state": "ready", "weight": 0.66, "weight_source": "measured", "max_in_flight": 16,
                 "in_flight": 3, "signals": {"waiting": 0, "averages": {"ttft_ms": 210.4, "error_rate": 0.5}}, "unknown": [1]},
                {"id": "fast", "pool": "p", "state": "ready", "weight": 1.34, "weight_source": "pinned", "throughput_tps": 980.2,
                 "max_in_flight": 32, "pin": {"reason": "r"}, "burst": {"phase": "kept", "done": 3, "of": 16}},
            ],
            "envoys": [{"node_id": "gateway-1", "connected": true, "applied_version": 7}, {"node_id": "old", "connected": false},
                {"node_id": "edge", "connected": true, "refuses": "Invalid path: x.wasm"}],
            "alarms": [{"code": "store_down", "subject": {"kind": "prober"}, "message": "no\u{1b}[2Jstore\nat all"}],
        }))
        .unwrap()
    }

    #[test]
    fn the_heaviest_comes_first_and_nothing_obeys_a_text_from_elsewhere() {
        let styled = everything(&fleet(), usize::MAX).join("\n");
        assert!(!styled.contains("\u{1b}[2J"));
        let text = anstream::adapter::strip_str(&styled).to_string();
        assert!(text.starts_with("ready, measures, 1 of 2 Envoys have snapshot 7, 1 alarm"), "{text}");
        let row =
            |id: &str| text.lines().position(|line| line.starts_with(id)).unwrap_or_else(|| panic!("{id}: {text}"));
        assert!(row("fast ") < row("slow "));
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[row("fast ")].contains("probing: second burst") && lines[row("fast ")].contains("████████  pinned"),
            "{text}"
        );
        assert!(lines[row("slow ")].contains("3/16") && lines[row("slow ")].contains("50.0 %"), "{text}");
        assert!(lines[row("old ")].contains("away") && lines[row("edge ")].contains("REFUSES"), "{text}");
        assert!(text.contains("store_down (prober): no\u{fffd}[2Jstore at all"), "{text}");
    }

    #[test]
    fn a_burst_of_another_prober_is_no_phase_of_ours() {
        let endpoint = |elsewhere| {
            let burst = crate::fleet::Burst { phase: "waiting".into(), elsewhere, ..Default::default() };
            Endpoint { burst: Some(burst), ..Endpoint::default() }
        };
        assert_eq!(state(&endpoint(true)).0, "probing by another prober");
        assert_eq!(state(&endpoint(false)).0, "probing: waiting until it is idle");
    }

    #[test]
    fn nothing_is_wider_than_the_screen() {
        for line in everything(&fleet(), 40) {
            // The first line is as long as it is.
            let plain = anstream::adapter::strip_str(&line).to_string();
            assert!(plain.chars().count() <= 40 || plain.starts_with("ready"), "{plain}");
        }
    }

    #[test]
    fn a_prober_that_tells_nothing_is_not_well() {
        assert!(!is_well(&Fleet::default()) && !is_well(&fleet()));
        assert!(is_well(&Fleet { alarms: Vec::new(), ..fleet() }));
    }
}
