//! The page of results, made of the JSON and of nothing else.

use std::fmt::Write;

use super::cost::SIZES;
use super::figures::{Cell, DISTURBED_LATE_MS, Quantiles, Round};
use super::results::{CommandInfo, Cost, Results};
use super::routers::{DIRECT, OURS, Router};

/// The scenario by which routers are compared first.
const MAIN: &str = "load86";

/// `docs/benchmarks.md`.
#[must_use]
pub fn page(results: &Results) -> String {
    let mut text = String::new();
    head(&mut text, results);
    summary(&mut text, results);
    behind(&mut text, results);
    for scenario in &results.scenarios {
        let _ = writeln!(text, "\n## {}: {}\n", scenario.name, scenario.what);
        let rounds = if scenario.rounds == 1 { "one round".to_owned() } else { format!("{} rounds", scenario.rounds) };
        if let Some(CommandInfo { span, seed, .. }) = results.commands.get(scenario.command) {
            let _ = write!(
                text,
                "{:.1} requests/s; {rounds} of {:.0} s after {:.0} s of warm-up, seed {seed}.",
                scenario.per_second, span.measured_s, span.warm_up_s
            );
        }
        if let (Some(asked), Some(most)) = (scenario.prompt_tokens_per_s, scenario.prefill_tokens_per_s) {
            let share = 100.0 * asked / most;
            let _ = write!(
                text,
                " Prompts have {asked:.0} tokens/s: {share:.0} % of the {most:.0} that the engines prefill together, before any hit in a cache."
            );
        }
        text.push_str("\n\n");
        for (name, why) in &scenario.not_measured {
            let _ = writeln!(text, "Not measured: {name}, which {why}.\n");
        }
        clients_saw(&mut text, results, &scenario.name);
        routers_used(&mut text, results, &scenario.name);
    }
    costs(&mut text, results);
    noise(&mut text, results);
    routers(&mut text, results);
    text
}

fn head(text: &mut String, results: &Results) {
    let machine = &results.machine;
    let _ = write!(
        text,
        "# Benchmarks

Weighbridge beside what people use instead: the same simulated engines, the same requests at the same moments, each router in
turn. This page is made of [benchmarks.json](benchmarks.json) by `scripts/bench peers-page`. To measure anew:

```sh
scripts/bench --install-peers
scripts/bench peers --json docs/benchmarks.json
scripts/bench peers-page
```

With `--append`, what is measured takes the place of what the file has of the same scenarios, and the rest stays.

Machine: {} cores ({}), {:.0} GiB, Linux {}.

| command | measured | commit | day | load average before |
|---|---|---|---|---|
{}

Engines: four processes of the engine simulator, with 980, 479, 240 and 240 output tokens/s at 16 requests (curves over 1, 8, 16
and 32 requests: 106/688/980/1,440; 94/400/479/465; 60/200/240/235 twice), at most 32 requests at once, prefix cache on,
prefill 6,000 tokens/s for each prompt, beside the others (a prompt that is being prefilled delays nobody else's), in `serial` one
prompt after the other. They are started anew before every run. Load of 100 % is the sum of the four at 16 requests; the most they can give is 1.24 times that.

Requests: a Poisson stream that waits for nobody; 60 % are the next turn of a conversation, 40 % single prompts of 100 to 4,000 tokens
(log-uniform); answers of 64 tokens on average; all streamed, with usage. Router, engines and load generator share the machine's
cores.
",
        machine.cores,
        machine.cpu,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.kernel,
        (0..results.commands.len()).map(|at| command(results, at)).collect::<Vec<_>>().join("\n"),
    );
    for (at, info) in results.commands.iter().enumerate() {
        of_command(text, results, at, info);
    }
}

/// A command's row.
fn command(results: &Results, at: usize) -> String {
    let info = &results.commands[at];
    format!(
        "| `{}` | {} | {} | {} | {} |",
        info.command,
        measured(results, at),
        info.commit,
        info.date,
        info.load_before
    )
}

/// What a command measured that is on the page.
fn measured(results: &Results, at: usize) -> String {
    let scenarios = results.scenarios.iter().filter(|scenario| scenario.command == at);
    let mut names: Vec<&str> = scenarios.map(|scenario| scenario.name.as_str()).collect();
    if results.costs.iter().any(|cost| cost.command == at) {
        names.push("cost");
    }
    names.join(", ")
}

/// What else is to be known of a command.
fn of_command(text: &mut String, results: &Results, at: usize, info: &CommandInfo) {
    let of = match results.commands.len() {
        1 => String::new(),
        _ => format!("{}: ", measured(results, at)),
    };
    if let Some(remark) = &info.remark {
        let _ = writeln!(text, "\n{of}{remark}");
    }
    for (lanes, endpoints) in info.measured.iter().filter(|(_, endpoints)| !endpoints.is_empty()) {
        let each: Vec<String> = endpoints
            .iter()
            .map(|one| {
                format!(
                    "{} {:.0} tokens/s, weight {}, at most {}",
                    one.id, one.throughput_tps, one.weight, one.max_in_flight
                )
            })
            .collect();
        let kind = if *lanes == 1 { " (engines that prefill one prompt at a time)" } else { "" };
        let _ = writeln!(text, "\n{of}The prober measured beforehand{kind}: {}.", each.join("; "));
    }
    for (name, why) in &info.left_out {
        let _ = writeln!(text, "\n{of}Left out: {name} ({why}).");
    }
}

/// A figure of a cell, in which one router is better than another.
struct Figure {
    name: &'static str,
    /// Less is better.
    less: bool,
    of: fn(&Cell) -> Option<f64>,
    show: fn(f64) -> String,
}

const FIGURES: [Figure; 8] = [
    Figure { name: "TTFT p50, s", less: true, of: |cell| Some(cell.ttft_s?.p50), show: |value| format!("{value:.2}") },
    Figure { name: "TTFT p99, s", less: true, of: |cell| Some(cell.ttft_s?.p99), show: |value| format!("{value:.2}") },
    Figure {
        name: "TPOT p50, ms",
        less: true,
        of: |cell| Some(cell.tpot_ms?.p50),
        show: |value| format!("{value:.1}"),
    },
    Figure {
        name: "TPOT p99, ms",
        less: true,
        of: |cell| Some(cell.tpot_ms?.p99),
        show: |value| format!("{value:.1}"),
    },
    Figure { name: "whole p50, s", less: true, of: |cell| Some(cell.end_s?.p50), show: |value| format!("{value:.2}") },
    Figure { name: "whole p99, s", less: true, of: |cell| Some(cell.end_s?.p99), show: |value| format!("{value:.1}") },
    Figure { name: "hit rate", less: false, of: |cell| Some(cell.hit_rate), show: |value| format!("{value:.2}") },
    Figure {
        name: "not served, %",
        less: true,
        of: |cell| Some(100.0 * (cell.failed + cell.shed) as f64 / cell.requests.max(1) as f64),
        show: |value| format!("{value:.1}"),
    },
];

impl Figure {
    /// The best of the others' (the control is none) that were told or were not, and whose it is.
    fn best<'a>(&self, results: &'a Results, scenario: &'a str, told: bool) -> Option<(&'a Cell, f64)> {
        let worth = |value: f64| if self.less { value } else { -value };
        of_scenario(results, scenario)
            .filter(|cell| cell.router != DIRECT && !is_ours(&cell.router) && results.was_told(&cell.router) == told)
            .filter_map(|cell| Some((cell, (self.of)(cell)?)))
            .min_by(|one, other| worth(one.1).total_cmp(&worth(other.1)))
    }

    /// Whether the one is better than the other as far as the page shows it.
    fn is_better(&self, one: f64, other: f64) -> bool {
        let number = |value: f64| (self.show)(value).parse().unwrap_or(f64::NAN);
        let (one, other): (f64, f64) = (number(one), number(other));
        if self.less { one < other } else { one > other }
    }
}

fn of_scenario<'a>(results: &'a Results, scenario: &'a str) -> impl Iterator<Item = &'a Cell> + Clone {
    results.cells.iter().filter(move |cell| cell.scenario == scenario)
}

fn summary(text: &mut String, results: &Results) {
    let Some(ours) = results.cell(MAIN, OURS) else { return };
    let _ = writeln!(
        text,
        "\n## In short\n\nAt 86 % load, and what a request costs. Told by hand are those whose configuration has weights (and caps) that we \
         measured and wrote there: they stand for an operator who does that, and does it again whenever an engine changes.\n"
    );
    let _ = writeln!(
        text,
        "| | {} | best out of the box | ratio | best told by hand | ratio |\n|---|---|---|---|---|---|",
        name_of("Weighbridge", ours)
    );
    for figure in &FIGURES {
        let Some(own) = (figure.of)(ours) else { continue };
        let best = |told| match figure.best(results, MAIN, told) {
            Some((cell, best)) => format!("{} ({}) | {}", (figure.show)(best), name(cell), ratio(own, best)),
            None => "- | -".to_owned(),
        };
        let _ = writeln!(text, "| {} | {} | {} | {} |", figure.name, (figure.show)(own), best(false), best(true));
    }
    for (size, _) in SIZES {
        if let (Some(own), Some(best)) = (cost(results, size, OURS), best_cost(results, size)) {
            let (own, least) = (own.total_us[0], best.total_us[0]);
            let ratio = ratio(own, least);
            let _ = writeln!(
                text,
                "| CPU per request, {size}, us (others that read prompts) | {own:.0} | {least:.0} ({}) | {ratio} | - | - |",
                best.router,
            );
        }
    }
}

fn ratio(own: f64, other: f64) -> String {
    if other == 0.0 { "-".to_owned() } else { format!("{:.2}", own / other) }
}

fn cost<'a>(results: &'a Results, size: &str, router: &str) -> Option<&'a Cost> {
    results.costs.iter().find(|cost| cost.size == size && cost.router == router)
}

fn is_ours(router: &str) -> bool {
    Router::named(router).is_some_and(|router| router.is_ours())
}

/// The least of the others that read prompts.
fn best_cost<'a>(results: &'a Results, size: &str) -> Option<&'a Cost> {
    let aware = |name: &str| results.routers().iter().any(|router| router.name == name && router.llm_aware);
    let others = results.costs.iter().filter(|cost| cost.size == size && !is_ours(&cost.router) && aware(&cost.router));
    others.min_by(|one, other| one.total_us[0].total_cmp(&other.total_us[0]))
}

/// Where somebody is better than we are, said and not hidden.
fn behind(text: &mut String, results: &Results) {
    let mut rows = Vec::new();
    for scenario in &results.scenarios {
        let Some(ours) = results.cell(&scenario.name, OURS) else { continue };
        for figure in &FIGURES {
            let Some(own) = (figure.of)(ours) else { continue };
            let better = [false, true].map(|told| {
                figure.best(results, &scenario.name, told).filter(|(_, best)| figure.is_better(*best, own))
            });
            if better.iter().any(Option::is_some) {
                let [out_of_the_box, told] = better.map(|better| {
                    better.map_or("-".to_owned(), |(cell, best)| format!("{} ({})", (figure.show)(best), name(cell)))
                });
                let own = (figure.show)(own);
                rows.push(format!("| {} | {} | {own} | {out_of_the_box} | {told} |", scenario.name, figure.name));
            }
        }
    }
    for (size, _) in SIZES {
        if let (Some(own), Some(best)) = (cost(results, size, OURS), best_cost(results, size))
            && own.total_us[0] > best.total_us[0]
        {
            let (own, least) = (own.total_us[0], best.total_us[0]);
            rows.push(format!("| {size} bodies | CPU per request, us | {own:.0} | {least:.0} ({}) | - |", best.router));
        }
    }
    if results.cells.iter().any(|cell| cell.router == OURS) {
        let _ = writeln!(
            text,
            "\n## Where Weighbridge is behind\n\nEvery figure in which another router was better, by however little (rounded as in the tables); \
             \"-\" where none of this kind was.\n"
        );
        if rows.is_empty() {
            let _ = writeln!(text, "Nowhere.");
        } else {
            let _ = writeln!(
                text,
                "| | | Weighbridge | better out of the box | better told by hand |\n|---|---|---|---|---|\n{}",
                rows.join("\n")
            );
        }
    }
}

fn pair(quantiles: Option<Quantiles>, show: fn(f64) -> String) -> String {
    quantiles.map_or_else(|| "- / -".to_owned(), |Quantiles { p50, p99 }| format!("{} / {}", show(p50), show(p99)))
}

/// The same, with the least and the greatest 99th percentile of the rounds where there are several.
fn spread(cell: &Cell, quantiles: Option<Quantiles>, of: fn(&Round) -> Option<f64>, show: fn(f64) -> String) -> String {
    let pair = pair(quantiles, show);
    let rounds: Vec<f64> = cell.rounds.iter().filter_map(of).collect();
    let (least, greatest) = (rounds.iter().copied().reduce(f64::min), rounds.iter().copied().reduce(f64::max));
    match (rounds.len(), least, greatest) {
        (2.., Some(least), Some(greatest)) => format!("{pair} ({} to {})", show(least), show(greatest)),
        _ => pair,
    }
}

/// Its name, and whether something disturbed it.
fn name(cell: &Cell) -> String {
    name_of(&cell.router, cell)
}

fn name_of(name: &str, cell: &Cell) -> String {
    let disturbed = if cell.rounds.iter().any(Round::is_disturbed) { " (disturbed)" } else { "" };
    format!("{name}{disturbed}")
}

fn rounds(cell: &Cell, of: impl Fn(&Round) -> Option<f64>) -> String {
    let each = cell.rounds.iter().map(|round| of(round).map_or("-".to_owned(), |value| format!("{value:.1}")));
    each.collect::<Vec<_>>().join(", ")
}

fn clients_saw(text: &mut String, results: &Results, scenario: &str) {
    let _ = writeln!(
        text,
        "| | TTFT p50 / p99, s | TPOT p50 / p99, ms | whole p50 / p99, s | requests | failed | shed | tokens/s | prefix hits | sent late p99, ms |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for cell in of_scenario(results, scenario) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {:.2} | {} |",
            name(cell),
            spread(cell, cell.ttft_s, |round| round.ttft_p99_s, |value| format!("{value:.2}")),
            spread(cell, cell.tpot_ms, |round| round.tpot_p99_ms, |value| format!("{value:.1}")),
            spread(cell, cell.end_s, |round| round.end_p99_s, |value| format!("{value:.2}")),
            cell.requests,
            cell.failed,
            cell.shed,
            cell.tokens_per_s.map_or("-".to_owned(), |rate| format!("{rate:.0}")),
            cell.hit_rate,
            rounds(cell, |round| round.late_p99_ms),
        );
    }
}

fn routers_used(text: &mut String, results: &Results, scenario: &str) {
    let engines: Vec<&String> =
        of_scenario(results, scenario).next().map(|cell| cell.shares.keys().collect()).unwrap_or_default();
    let names: Vec<&str> = engines.iter().map(|name| name.as_str()).collect();
    let _ = writeln!(
        text,
        "\n| | share of {}, % | CPU per request, us | peak memory, MiB | added p50 / p99, ms |\n|---|---|---|---|---|",
        names.join(" / ")
    );
    for cell in of_scenario(results, scenario) {
        let shares: Vec<String> = engines
            .iter()
            .map(|name| format!("{:.0}", 100.0 * cell.shares.get(*name).copied().unwrap_or(0.0)))
            .collect();
        let cpu = parts(cell.cpu_us.iter().map(|(part, us)| (part.as_str(), format!("{us:.0}"))));
        let memory = cell.peak_rss_bytes.iter();
        let memory =
            parts(memory.map(|(part, bytes)| (part.as_str(), format!("{:.0}", *bytes as f64 / f64::from(1 << 20)))));
        let added = pair(cell.added_ms, |value| format!("{value:.1}"));
        let _ = writeln!(text, "| {} | {} | {cpu} | {memory} | {added} |", cell.router, shares.join(" / "));
    }
}

/// What has one part needs no name for it.
fn parts<'a>(parts: impl ExactSizeIterator<Item = (&'a str, String)>) -> String {
    match parts.len() {
        0 => "-".to_owned(),
        1 => parts.map(|(_, value)| value).collect(),
        _ => parts.map(|(part, value)| format!("{part} {value}")).collect::<Vec<_>>().join(", "),
    }
}

fn costs(text: &mut String, results: &Results) {
    if results.costs.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n## What a request costs\n\nCPU of the router per request by the size of the body, in front of four engines that answer at once, 4 connections with one \
         request at a time; median (least to greatest) of rounds in turn. The prober uses CPU by time rather than by request.\n"
    );
    let sizes: Vec<&str> = SIZES.iter().map(|(size, _)| *size).collect();
    let _ = writeln!(
        text,
        "| | {} |\n|---|---|---|---|",
        sizes.iter().map(|size| format!("{size}, us")).collect::<Vec<_>>().join(" | ")
    );
    let mut named: Vec<&str> = results.routers().iter().map(|router| router.name.as_str()).collect();
    named.dedup();
    for router in named {
        let cells: Vec<String> = sizes
            .iter()
            .filter_map(|size| {
                let cost = cost(results, size, router)?;
                let [median, least, greatest] = cost.total_us;
                let of = if cost.cpu_us.len() > 1 {
                    format!("; {}", parts(cost.cpu_us.iter().map(|(part, us)| (part.as_str(), format!("{us:.0}")))))
                } else {
                    String::new()
                };
                Some(format!("{median:.0} ({least:.0} to {greatest:.0}{of})"))
            })
            .collect();
        if !cells.is_empty() {
            let _ = writeln!(text, "| {router} | {} |", cells.join(" | "));
        }
    }
}

/// What the control says, and how far rounds lie apart.
fn noise(text: &mut String, results: &Results) {
    let _ = writeln!(text, "\n## How far to trust this\n");
    let worst = |of: fn(&Cell) -> f64| results.cells.iter().map(of).fold(0.0, f64::max);
    let late = worst(|cell| cell.late_ms.map_or(0.0, |late| late.p99));
    let _ = writeln!(
        text,
        "- The load generator kept {:.2} cores busy at most, the four engines together {:.2}. 99 of 100 requests were sent within {late:.1} ms \
         of their moment, in the worst of the runs.",
        worst(|cell| cell.generator_cores),
        worst(|cell| cell.engines_cores),
    );
    let disturbed = results.cells.iter().flat_map(|cell| &cell.rounds).filter(|round| round.is_disturbed()).count();
    let _ = writeln!(
        text,
        "- A run is marked as disturbed where one of a hundred requests was sent more than {DISTURBED_LATE_MS:.0} ms late: the machine had \
         other things to do, and times that lie close together say nothing there. It was so in {disturbed} of {} runs.\n\
         - Times count from the moment at which a request was due, whenever the load generator came to send it. Percentiles are of the \
         requests of all rounds together; in brackets, the least and the greatest 99th percentile of a round.\n\
         - tokens/s: output tokens that reached clients within the measured time, by the second, of all answers that were complete in \
         the end; each chunk of an answer counts for the same share of its tokens.",
        results.cells.iter().map(|cell| cell.rounds.len()).sum::<usize>(),
    );
    if let Some(added) = results.cell(MAIN, DIRECT).and_then(|cell| cell.added_ms) {
        let _ = writeln!(
            text,
            "- `{DIRECT}` has no router. What clients saw there is {:.1} ms (p50) and {:.1} ms (p99) more than what the engines' model of time \
             says: the engines keep their pace to so much.",
            added.p50, added.p99
        );
    }
    let _ = writeln!(
        text,
        "- Shed: 429, or 503 while every engine lives. Failed: everything else that is no complete answer; a client gives up after 60 s.\n\
         - Added: what the client waited less what the engine took, where the router passes on the header that names the request.\n\
         - CPU counts every process of a router, over the measured time; peak memory is theirs together. Simulated engines take no GPU's time and answer with text that \
         means nothing; how they are modelled stands in `tests/engine-sim/src/model/mod.rs`."
    );
}

fn routers(text: &mut String, results: &Results) {
    let _ = writeln!(
        text,
        "\n## Who took part\n\nCPU: per streamed request of 500 tokens in and 64 out, 25 a second, tried beforehand. Whoever would need more than a third of the \
         machine's cores at a scenario's rate is not measured there: what it would wait for is the machine.\n\n\
         | | version | CPU, ms | told by hand | how |\n|---|---|---|---|---|"
    );
    for router in results.routers() {
        let version = if router.version.is_empty() { "-" } else { &router.version };
        let cpu = router.cpu_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
        let told = if router.told { "yes" } else { "no" };
        // Figures say nothing of a set-up that has changed since.
        let changed = match Router::named(&router.name) {
            Some(today) if today.how == router.how => "",
            _ => " (set up otherwise today)",
        };
        let _ = writeln!(text, "| {} | {version} | {cpu} | {told} | {}{changed} |", router.name, router.how);
    }
}

#[cfg(test)]
mod tests;
