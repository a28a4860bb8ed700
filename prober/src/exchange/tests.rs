//! The sums that are kept up to date, against sums over everything.

use proptest::prelude::*;
use weighbridge_routing::exchange::PoolReport;

use super::outside::Scrapes;
use super::*;

const INTERVAL_MS: u64 = 250;
const ENDPOINTS: [&str; 3] = ["a", "b", "c"];

/// What happens.
#[derive(Debug, Clone)]
enum Event {
    /// An Envoy reports of some endpoints.
    Report {
        envoy: u8,
        rows: Vec<(usize, u32, u32)>,
    },
    /// An engine is scraped.
    Scrape {
        endpoint: usize,
        requests: u64,
    },
    Replaced {
        endpoint: usize,
    },
    Forget {
        endpoint: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let endpoint = || 0..ENDPOINTS.len();
    let rows = proptest::collection::vec((endpoint(), prop_oneof![0..20_u32, Just(u32::MAX)], 0..5_000_u32), 0..4);
    prop_oneof![
        8 => (0..4_u8, rows).prop_map(|(envoy, rows)| Event::Report { envoy, rows }),
        8 => (endpoint(), 0..60_u64).prop_map(|(endpoint, requests)| Event::Scrape { endpoint, requests }),
        1 => endpoint().prop_map(|endpoint| Event::Replaced { endpoint }),
        1 => endpoint().prop_map(|endpoint| Event::Forget { endpoint }),
    ]
}

fn report(envoy: u8, rows: &[(usize, u32, u32)]) -> Report {
    let endpoints = rows.iter().map(|(endpoint, in_flight, pending_tokens)| {
        let told =
            EndpointReport { in_flight: *in_flight, pending_tokens: *pending_tokens, ..EndpointReport::default() };
        (ENDPOINTS[*endpoint].to_owned(), told)
    });
    let pool = PoolReport { endpoints: endpoints.collect(), ..PoolReport::default() };
    Report { envoy: envoy.to_string(), pools: BTreeMap::from([("p".to_owned(), pool)]) }
}

/// Of a gauge that does not stand still: what is kept for one that does cannot be added up again later.
fn exact(requests: u64) -> Reading {
    Reading { requests, repeats: false }
}

proptest! {
    #[test]
    fn kept_sums_are_what_adding_everything_up_gives(events in proptest::collection::vec((0..400_u64, event()), 1..80)) {
        let mut exchange = Exchange::new(Settings { interval_ms: INTERVAL_MS, average_over_ms: 1.0 }, HashMap::new());
        let mut scraped: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        let mut now_ms = 10_000;
        for (later_ms, event) in events {
            now_ms += later_ms;
            match event {
                Event::Report { envoy, rows } => {
                    let report = report(envoy, &rows);
                    exchange.report(&report, |_, _| true, now_ms).unwrap();
                    for (nth, id) in ENDPOINTS.into_iter().enumerate() {
                        let others = || exchange.envoys.iter().filter(|(name, _)| **name != report.envoy);
                        let rows = || others().filter_map(|(_, other)| other.rows.get(id));
                        let answer = exchange.seen_by(&report.envoy, id, now_ms);
                        let in_flight = rows().fold(0, |sum: u32, row| sum.saturating_add(row.counts.last()));
                        let tokens = rows().fold(0, |sum: u32, row| sum.saturating_add(row.pending_tokens));
                        prop_assert_eq!((answer.others, answer.others_tokens), (in_flight, tokens));
                        let counts: Vec<&Counts> =
                            exchange.envoys.values().filter_map(|envoy| Some(&envoy.rows.get(id)?.counts)).collect();
                        let mut engine = Scrapes::new(INTERVAL_MS);
                        for (at_ms, requests) in scraped.get(&nth).into_iter().flatten() {
                            engine.push(*at_ms, exact(*requests), counts.iter().copied());
                        }
                        prop_assert_eq!(answer.outside, engine.outside(now_ms));
                    }
                    let fresh = |envoy: &Envoy| is_fresh(envoy.heard_ms, now_ms, exchange.settings.stale_after_ms());
                    prop_assert!(exchange.envoys.values().all(fresh));
                }
                Event::Scrape { endpoint, requests } => {
                    exchange.scraped(ENDPOINTS[endpoint], exact(requests), now_ms);
                    scraped.entry(endpoint).or_default().push((now_ms, requests));
                }
                Event::Replaced { endpoint } => {
                    exchange.replaced(ENDPOINTS[endpoint]);
                    scraped.remove(&endpoint);
                }
                Event::Forget { endpoint } => {
                    exchange.forget(ENDPOINTS[endpoint]);
                    scraped.remove(&endpoint);
                }
            }
        }
    }
}

#[test]
fn envoys_that_shun_an_endpoint_count_while_they_say_so() {
    let mut exchange = Exchange::new(Settings { interval_ms: INTERVAL_MS, average_over_ms: 1.0 }, HashMap::new());
    let mut say = |envoy: &str, ejected, cooling_down, waiting, now_ms| {
        let endpoint = EndpointReport { ejected, cooling_down, ..EndpointReport::default() };
        let pool = PoolReport { waiting, endpoints: BTreeMap::from([("a".to_owned(), endpoint)]) };
        let report = Report { envoy: envoy.into(), pools: BTreeMap::from([("p".to_owned(), pool)]) };
        exchange.report(&report, |_, _| true, now_ms).unwrap();
        let Shunned { ejected, cooling_down } = exchange.shunned("a", now_ms);
        (ejected, cooling_down, exchange.waiting("p", now_ms), exchange.waiting("q", now_ms))
    };
    assert_eq!(say("one", true, false, 3, 10_000), (1, 0, 3, 0));
    assert_eq!(say("two", true, true, 4, 10_100), (2, 1, 7, 0));
    assert_eq!(say("one", false, false, 0, 10_200), (1, 1, 4, 0));
    // The other one has not been heard of for three intervals.
    assert_eq!(say("one", false, false, 1, 10_100 + 4 * INTERVAL_MS), (0, 0, 1, 0));
}
