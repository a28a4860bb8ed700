//! The model of time: the published figures, batching, prefill, cache, cancellation.

use engine_sim::model::{Cold, Event, EventKind, Model, Nanos, Profile, Request, seconds};
use engine_sim::sweep::{burst, sweep};

fn run(model: &mut Model) -> Vec<Event> {
    let mut events = model.take_events();
    while let Some(at) = model.next_event() {
        model.advance(at);
        events.extend(model.take_events());
    }
    events
}

fn at(events: &[Event], id: u64, wanted: impl Fn(&EventKind) -> bool) -> Nanos {
    let found = events.iter().find(|event| event.id == id && wanted(&event.kind));
    found.expect("the event is there").at
}

fn finish(events: &[Event], id: u64) -> f64 {
    seconds(at(events, id, |kind| matches!(kind, EventKind::Finished { .. })))
}

fn first_token(events: &[Event], id: u64) -> f64 {
    seconds(at(events, id, |kind| matches!(kind, EventKind::FirstToken)))
}

fn close(value: f64, wanted: f64) {
    assert!((value / wanted - 1.0).abs() < 0.01, "{value} instead of {wanted}");
}

/// One sequence runs at 100 tok/s, two at 150 together.
fn simple() -> Profile {
    Profile::new("simple", &[(1, 100.0), (2, 150.0)]).warm()
}

#[test]
fn a_warmed_burst_shows_the_published_curve() {
    for (profile, figures) in
        [(Profile::fast(), [106.0, 688.0, 980.0, 1440.0]), (Profile::pair(), [94.0, 400.0, 479.0, 465.0])]
    {
        let measured = sweep(&profile, &[1, 8, 16, 32], 128).unwrap();
        for ((_, tps), wanted) in measured.into_iter().zip(figures) {
            close(tps, wanted);
        }
    }
}

#[test]
fn the_first_burst_is_cold_and_the_second_is_not() {
    let mut model = Model::new(Profile::fast()).unwrap();
    close(burst(&mut model, 16, 128).unwrap(), 275.0);
    close(burst(&mut model, 16, 128).unwrap(), 980.0);
    model.restart(model.now(), Profile::fast(), true).unwrap();
    close(burst(&mut model, 16, 128).unwrap(), 275.0);
}

#[test]
fn being_cold_ends_by_work_not_by_time() {
    let mut model = Model::new(Profile::fast()).unwrap();
    model.advance(3_600_000_000_000);
    close(burst(&mut model, 16, 128).unwrap(), 275.0);
    assert_eq!(model.stats().cold_tokens_left, 0);
}

#[test]
fn a_second_sequence_slows_the_first() {
    let mut model = Model::new(simple()).unwrap();
    model.submit(0, Request::new(1, 10, 100)).unwrap();
    model.submit(500_000_000, Request::new(2, 10, 100)).unwrap();
    let events = run(&mut model);
    // 50 tokens alone, then 50 at 75 tok/s, and so the other way round for the second.
    close(finish(&events, 1), 0.5 + 50.0 / 75.0);
    close(finish(&events, 2), 0.5 + 50.0 / 75.0 + 0.5);
}

#[test]
fn requests_past_the_batch_limit_wait() {
    let mut profile = simple();
    profile.batch_limit = 2;
    let mut model = Model::new(profile).unwrap();
    for id in 0..5 {
        model.submit(0, Request::new(id, 10, 30)).unwrap();
    }
    assert_eq!((model.stats().running, model.stats().waiting), (2, 3));
    let events = run(&mut model);
    close(finish(&events, 0), 0.4);
    close(first_token(&events, 2), 0.4 + 2.0 / 150.0);
    assert_eq!(model.stats().running_max, 2);
    assert_eq!(model.stats().finished, 5);
}

#[test]
fn prefill_takes_time_by_uncached_tokens_and_one_at_a_time() {
    let mut model = Model::new(simple()).unwrap();
    model.submit(0, Request::new(1, 6_064, 1)).unwrap();
    model.submit(0, Request::new(2, 3_064, 1)).unwrap();
    let events = run(&mut model);
    close(first_token(&events, 1), 1.0 + 0.01);
    close(first_token(&events, 2), 1.5 + 0.01);
}

#[test]
fn with_several_lanes_prompts_are_prefilled_side_by_side() {
    let mut profile = simple();
    profile.prefill_lanes = 2;
    let mut model = Model::new(profile).unwrap();
    for (id, tokens) in [(1, 6_064), (2, 3_064), (3, 3_064)] {
        model.submit(0, Request::new(id, tokens, 1)).unwrap();
    }
    let events = run(&mut model);
    close(first_token(&events, 2), 0.5 + 0.01);
    // The third begins when the second is done, and ends with the first.
    close(first_token(&events, 1), 1.0 + 2.0 / 150.0);
    close(first_token(&events, 3), 1.0 + 2.0 / 150.0);
}

#[test]
fn decodes_go_on_during_a_prefill_at_the_configured_share() {
    for (share, wanted) in [(1.0, 0.5), (0.5, 0.99)] {
        let mut profile = simple();
        profile.decode_share_during_prefill = share;
        let mut model = Model::new(profile).unwrap();
        model.submit(0, Request::new(1, 10, 50)).unwrap();
        model.submit(0, Request::new(2, 12_064, 1)).unwrap();
        // The first step began before the second request was there.
        close(finish(&run(&mut model), 1), wanted);
    }
}

#[test]
fn a_cached_prefix_needs_no_prefill() {
    let mut model = Model::new(simple()).unwrap();
    let blocks: Vec<u64> = (0..400).collect();
    model.submit(0, Request::new(1, 6_400, 16).with_blocks(blocks.clone(), vec![9_000])).unwrap();
    run(&mut model);
    let start = model.now();
    let mut next = blocks;
    next.extend([9_000, 9_001]);
    model.submit(start, Request::new(2, 6_432, 1).with_blocks(next, vec![])).unwrap();
    let events = run(&mut model);
    let cached = events.iter().find_map(|event| match event.kind {
        EventKind::Admitted { cached_tokens } => Some(cached_tokens),
        _ => None,
    });
    assert_eq!(cached, Some(6_416), "the prompt and the reply of the turn before");
    close(first_token(&events, 2) - seconds(start), 0.01);
    assert_eq!(model.stats().cache_hit_tokens, 6_416);
    assert_eq!(model.stats().cache_query_tokens, 6_400 + 6_432);
}

#[test]
fn a_full_cache_makes_requests_wait() {
    let mut profile = simple();
    profile.max_model_len = 1_600;
    profile.kv_capacity_tokens = 1_600;
    let mut model = Model::new(profile).unwrap();
    model.submit(0, Request::new(1, 900, 100)).unwrap();
    model.submit(0, Request::new(2, 900, 100)).unwrap();
    assert_eq!((model.stats().running, model.stats().waiting), (1, 1));
    assert!(model.stats().kv_usage > 0.5);
    run(&mut model);
    assert_eq!(model.stats().finished, 2);
    assert_eq!(model.stats().kv_usage, 0.0);
}

#[test]
fn cancelled_requests_free_their_place() {
    let mut profile = simple();
    profile.batch_limit = 1;
    let mut model = Model::new(profile).unwrap();
    for id in 1..=3 {
        model.submit(0, Request::new(id, 10, 1_000)).unwrap();
    }
    assert!(model.cancel(1_000_000_000, 1));
    assert!(!model.cancel(1_000_000_000, 1));
    assert_eq!((model.stats().running, model.stats().waiting), (1, 1));
    assert!(model.cancel(1_000_000_000, 3), "waiting ones too");
    let events = run(&mut model);
    close(finish(&events, 2), 11.0);
    assert_eq!(model.stats().generated_tokens, 1_100);
    assert!(model.next_event().is_none());
}

#[test]
fn a_slowed_request_takes_that_many_times_as_long() {
    let mut model = Model::new(simple()).unwrap();
    let mut request = Request::new(1, 10, 50).streaming();
    request.slow = 4.0;
    model.submit(0, request).unwrap();
    let events = run(&mut model);
    close(finish(&events, 1), 2.0);
    close(first_token(&events, 1), 0.04);
}

#[test]
fn without_a_curve_everything_is_done_at_once() {
    let mut model = Model::new(Profile::instant()).unwrap();
    model.submit(7, Request::new(1, 10_000, 500).streaming()).unwrap();
    model.advance(7);
    let events = model.take_events();
    assert!(events.iter().all(|event| event.at == 7));
    assert!(matches!(events.last().unwrap().kind, EventKind::Finished { output_tokens: 500 }));
    assert_eq!(model.stats().running, 0);
}

#[test]
fn what_cannot_run_is_refused() {
    let mut model = Model::new(simple()).unwrap();
    assert!(model.submit(0, Request::new(1, 0, 1)).is_err());
    assert!(model.submit(0, Request::new(1, 1, 0)).is_err());
    assert!(model.submit(0, Request::new(1, 32_768, 1)).is_err());
    let mut slow = Request::new(1, 1, 1);
    slow.slow = 0.5;
    assert!(model.submit(0, slow).is_err());
    assert_eq!(model.stats().waiting, 0);
    assert_eq!(simple().cold, Cold::NONE);
}
