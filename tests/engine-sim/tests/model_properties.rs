//! Invariants of the model under arbitrary traffic.

use std::collections::HashMap;

use engine_sim::model::{Event, EventKind, Model, Profile, Request};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Arrival {
    gap_us: u64,
    prompt: u64,
    output: u64,
    family: u64,
    stream: bool,
    slow: f64,
    cancel_after_us: Option<u64>,
}

fn arrival() -> impl Strategy<Value = Arrival> {
    (
        0..50_000u64,
        1..2_000u64,
        1..80u64,
        0..4u64,
        any::<bool>(),
        prop_oneof![4 => Just(1.0), 1 => 1.0..5.0],
        prop_oneof![4 => Just(None), 1 => (0..2_000_000u64).prop_map(Some)],
    )
        .prop_map(|(gap_us, prompt, output, family, stream, slow, cancel_after_us)| Arrival {
            gap_us,
            prompt,
            output,
            family,
            stream,
            slow,
            cancel_after_us,
        })
}

fn profile(limit: usize) -> Profile {
    let mut profile = Profile::fast();
    profile.batch_limit = limit;
    profile.max_model_len = 4_096;
    profile.kv_capacity_tokens = 8_192;
    profile.cold.tokens = 300;
    profile.decode_share_during_prefill = 0.7;
    profile
}

fn request(id: u64, arrival: &Arrival) -> Request {
    let blocks = (0..arrival.prompt / 16).map(|n| arrival.family << 32 | n).collect();
    let mut request = Request::new(id, arrival.prompt, arrival.output).with_blocks(blocks, vec![id << 40]);
    request.stream = arrival.stream;
    request.slow = arrival.slow;
    request
}

/// Runs the traffic, advancing from event to event and also to every arrival and cancellation.
fn play(arrivals: &[Arrival], limit: usize, mut check: impl FnMut(&Model)) -> (Model, Vec<Event>) {
    let mut inputs: Vec<(u64, u64, bool)> = Vec::new();
    let mut time = 0;
    for (id, arrival) in arrivals.iter().enumerate() {
        time += arrival.gap_us * 1_000;
        inputs.push((time, id as u64, true));
        if let Some(after) = arrival.cancel_after_us {
            inputs.push((time + after * 1_000, id as u64, false));
        }
    }
    inputs.sort_by_key(|&(time, id, submit)| (time, !submit, id));
    let mut model = Model::new(profile(limit)).unwrap();
    let mut events = Vec::new();
    for (time, id, submit) in inputs {
        while let Some(at) = model.next_event().filter(|&at| at < time) {
            model.advance(at);
            events.extend(model.take_events());
            check(&model);
        }
        if submit {
            model.submit(time, request(id, &arrivals[id as usize])).unwrap();
        } else {
            model.cancel(time, id);
        }
        events.extend(model.take_events());
        check(&model);
    }
    let mut turns = 0;
    while let Some(at) = model.next_event() {
        model.advance(at);
        events.extend(model.take_events());
        check(&model);
        turns += 1;
        assert!(turns < 1_000_000, "no end");
    }
    (model, events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_token_comes_out_once_and_in_time(arrivals in prop::collection::vec(arrival(), 1..40), limit in 1..12usize) {
        let mut last_time = 0;
        let (model, events) = play(&arrivals, limit, |model| {
            let stats = model.stats();
            assert!(stats.running <= limit, "{} run, limit {limit}", stats.running);
            assert!((0.0..=1.0).contains(&stats.kv_usage));
            assert!(model.now() >= last_time);
            last_time = model.now();
        });
        let mut streamed: HashMap<u64, u64> = HashMap::new();
        let mut finished: HashMap<u64, u64> = HashMap::new();
        let mut times: HashMap<u64, u64> = HashMap::new();
        for event in &events {
            let before = times.insert(event.id, event.at).unwrap_or(0);
            prop_assert!(event.at >= before, "time runs backwards for {}", event.id);
            match event.kind {
                EventKind::Tokens { count } => *streamed.entry(event.id).or_default() += count,
                EventKind::Finished { output_tokens } => {
                    prop_assert!(finished.insert(event.id, output_tokens).is_none());
                }
                EventKind::Admitted { cached_tokens } => {
                    prop_assert!(cached_tokens < arrivals[event.id as usize].prompt);
                }
                EventKind::FirstToken => {}
            }
        }
        for (id, arrival) in arrivals.iter().enumerate() {
            let id = id as u64;
            match finished.get(&id) {
                Some(&tokens) => prop_assert_eq!(tokens, arrival.output),
                None => prop_assert!(arrival.cancel_after_us.is_some(), "{} never ended", id),
            }
            if arrival.stream && finished.contains_key(&id) {
                prop_assert_eq!(streamed.get(&id).copied().unwrap_or(0), arrival.output);
            }
        }
        let stats = model.stats();
        prop_assert_eq!((stats.running, stats.waiting), (0, 0));
        prop_assert_eq!(stats.kv_usage, 0.0);
        prop_assert_eq!(stats.finished + stats.cancelled, arrivals.len() as u64);
    }

    #[test]
    fn the_stride_of_time_does_not_matter(arrivals in prop::collection::vec(arrival(), 1..20), stride_us in 1..200_000u64) {
        let quiet: Vec<Arrival> = arrivals
            .into_iter()
            .map(|arrival| Arrival { gap_us: 0, cancel_after_us: None, ..arrival })
            .collect();
        let ends = |events: &[Event]| -> Vec<(u64, u64)> {
            let done = events.iter().filter(|event| matches!(event.kind, EventKind::Finished { .. }));
            done.map(|event| (event.id, event.at)).collect()
        };
        let (model, events) = play(&quiet, 8, |_| {});
        let mut coarse = Model::new(profile(8)).unwrap();
        for (id, arrival) in quiet.iter().enumerate() {
            coarse.submit(0, request(id as u64, arrival)).unwrap();
        }
        while coarse.next_event().is_some() {
            coarse.advance(coarse.now() + stride_us * 1_000);
        }
        prop_assert_eq!(ends(&events), ends(&coarse.take_events()));
        prop_assert_eq!(model.stats().generated_tokens, coarse.stats().generated_tokens);
    }
}
