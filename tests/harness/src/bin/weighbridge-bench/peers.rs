//! Weighbridge beside what people use instead, on the wire; and the page about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::artifacts;
use harness::peers::{
    self, Cell, CommandInfo, Engines, Machine, Measured, MeasuredEndpoint, ROUTERS, Results, Router, RouterInfo, Run,
    SCENARIOS, Scenario, ScenarioInfo, Setup, Span, When,
};

use serde_json::Value;

use crate::output;

/// The scenario that is none: what a request costs.
const COST: &str = "cost";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these routers, in all scenarios; by default all that are not policies known to be worse in load86, and the best of each
    /// kind elsewhere.
    #[arg(long, value_name = "ROUTER", value_delimiter = ',', value_parser = router)]
    only: Vec<Router>,
    /// Only these scenarios: load86, load50, load120, noreuse, slow, killed, serial; or cost, the CPU per request by size of the body.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = scenario)]
    scenario: Vec<Chosen>,
    /// Seconds of each run that count.
    #[arg(long, default_value_t = 15.0)]
    seconds: f64,
    /// Seconds before that, in which caches and batches fill.
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Rounds of every scenario, each router once in each; 2 of load86 and one of the others by default.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seed of the first round.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A few seconds of each: whether it works, not how well.
    #[arg(long)]
    quick: bool,
    /// Settings of our pool that are not the defaults, to see what they would do: `{"affinity": {"k": 2}}`.
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = settings)]
    pool: Value,
    /// What else is to be known about this run; the page says it.
    #[arg(long, value_name = "TEXT")]
    remark: Option<String>,
    /// Also writes the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What that file has of other scenarios stays there: a long campaign can be run scenario by scenario.
    #[arg(long, requires = "json")]
    append: bool,
    /// Also keeps Envoy's access logs, with the decisions, in this directory.
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
}

fn router(name: &str) -> Result<Router, String> {
    Router::named(name).ok_or_else(|| {
        let names: Vec<_> = ROUTERS.iter().map(|router| router.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

fn settings(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err("expected a JSON object".to_owned()) }
}

/// A scenario, or what a request costs.
#[derive(Debug, Clone, Copy)]
enum Chosen {
    Scenario(Scenario),
    Cost,
}

fn scenario(name: &str) -> Result<Chosen, String> {
    if name == COST {
        return Ok(Chosen::Cost);
    }
    Scenario::named(name).map(Chosen::Scenario).ok_or_else(|| {
        let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        format!("expected {COST} or one of {}", names.join(", "))
    })
}

impl Options {
    fn span(&self) -> Span {
        if self.quick {
            Span { warm_up_s: 2.0, measured_s: 4.0 }
        } else {
            Span { warm_up_s: self.warm_up, measured_s: self.seconds }
        }
    }

    fn scenarios(&self) -> Vec<Scenario> {
        let all = SCENARIOS.into_iter().map(Chosen::Scenario).collect::<Vec<_>>();
        let chosen = if self.scenario.is_empty() { &all } else { &self.scenario };
        let scenarios = chosen.iter().filter_map(|chosen| match chosen {
            Chosen::Scenario(scenario) => Some(*scenario),
            Chosen::Cost => None,
        });
        let rounds = |scenario: Scenario| self.rounds.unwrap_or(if self.quick { 1 } else { scenario.rounds });
        scenarios.map(|scenario| Scenario { rounds: rounds(scenario), ..scenario }).collect()
    }

    fn wants_cost(&self) -> bool {
        self.scenario.is_empty() || self.scenario.iter().any(|chosen| matches!(chosen, Chosen::Cost))
    }
}

pub(crate) async fn run(options: &Options) -> Result<()> {
    ensure!(options.seconds > 0.0 && options.warm_up >= 0.0, "--seconds must be above 0, and --warm-up at least 0");
    let load_before = peers::load_averages();
    let (routers, left_out) = installed(options);
    ensure!(!routers.is_empty(), "no router is left: {left_out:?}");
    let earlier = match (&options.json, options.append) {
        (Some(path), true) if path.exists() => Some(read(path).with_context(|| format!("--json {}", path.display()))?),
        _ => None,
    };
    let mut info = CommandInfo {
        command: command(),
        commit: peers::commit().await,
        date: today().await?,
        load_before,
        remark: options.remark.clone(),
        span: options.span(),
        seed: options.seed,
        routers: Vec::new(),
        left_out,
        measured: BTreeMap::new(),
    };
    for router in &routers {
        info.routers.push(RouterInfo {
            name: router.name.into(),
            how: router.how.into(),
            version: router.version().await?,
            llm_aware: router.llm_aware,
            told: router.told,
            cpu_ms: None,
        });
    }
    let machine = Machine::here();
    let results =
        Results { machine, commands: Vec::new(), scenarios: Vec::new(), cells: Vec::new(), costs: Vec::new() };
    let mut taken = Taken { earlier, info, results };
    // What cannot be kept is said before it is measured.
    taken.all()?;
    let scenarios = options.scenarios();
    if !scenarios.is_empty() {
        compare(options, &scenarios, &routers, &mut taken).await?;
    }
    if options.wants_cost() {
        costs(options, &routers, &mut taken).await?;
        taken.save(options)?;
    }
    output::result("peers", &[serde_json::to_value(taken.own())?]);
    Ok(())
}

/// What has been measured so far.
struct Taken {
    /// What the file had.
    earlier: Option<Results>,
    info: CommandInfo,
    /// Without the command.
    results: Results,
}

impl Taken {
    /// What this command has measured.
    fn own(&self) -> Results {
        Results { commands: vec![self.info.clone()], ..self.results.clone() }
    }

    fn all(&self) -> Result<Results> {
        match self.earlier.clone() {
            Some(earlier) => Ok(earlier.then(self.own())?),
            None => Ok(self.own()),
        }
    }

    fn save(&self, options: &Options) -> Result<()> {
        let Some(path) = &options.json else { return Ok(()) };
        std::fs::write(path, self.all()?.to_json()?).with_context(|| format!("--json {}", path.display()))
    }
}

fn read(path: &Path) -> Result<Results> {
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

/// Those that are there; and of the others, why they are not.
fn installed(options: &Options) -> (Vec<Router>, BTreeMap<String, String>) {
    let wanted = ROUTERS.into_iter().filter(|router| match options.only.as_slice() {
        // What was told by hand is for careful comparisons.
        [] => router.when == When::Always || router.when == When::Everybody && !(options.quick && router.told),
        only => only.iter().any(|one| one.name == router.name),
    });
    let (mut there, mut left_out) = (Vec::new(), BTreeMap::new());
    for router in wanted {
        match router.program() {
            Ok(_) => there.push(router),
            Err(why) => {
                eprintln!("left out: {}: {why:#}", router.name);
                left_out.insert(router.name.to_owned(), format!("{why:#}"));
            }
        }
    }
    (there, left_out)
}

/// Engines of one kind, and what our prober has measured of them.
struct Fleet {
    /// Prompts that each prefills at once.
    lanes: usize,
    engines: Engines,
    setup: Setup,
    measured: Option<Measured>,
}

impl Fleet {
    async fn start(options: &Options, lanes: usize, routers: &[Router]) -> Result<Self> {
        let engines = Engines::unequal(&std::env::current_exe()?, lanes).await?;
        let mut setup = Setup { engines: engines.members(), measured: None, pool: options.pool.clone() };
        let mut measured = None;
        if routers.iter().any(Router::is_ours) {
            eprintln!("the prober measures the engines");
            let done = Measured::measure(&setup).await?;
            setup.measured = Some(done.store());
            measured = Some(done);
        }
        Ok(Self { lanes, engines, setup, measured })
    }

    /// What the prober says of them; nothing where it is not there.
    fn measured(&self) -> Result<Vec<MeasuredEndpoint>> {
        let endpoints = self.measured.iter().filter_map(|measured| measured.endpoints.as_array()).flatten();
        let all = endpoints.map(|endpoint| {
            Ok(MeasuredEndpoint {
                id: endpoint["id"].as_str().context("an endpoint without id")?.to_owned(),
                throughput_tps: endpoint["throughput_tps"].as_f64().context("an endpoint that was not measured")?,
                weight: endpoint["weight"].as_f64().context("no weight")?,
                max_in_flight: endpoint["max_in_flight"].as_u64().unwrap_or(0),
            })
        });
        let all = all.collect::<Result<Vec<_>>>()?;
        eprintln!("{all:?}");
        Ok(all)
    }
}

async fn compare(options: &Options, scenarios: &[Scenario], routers: &[Router], taken: &mut Taken) -> Result<()> {
    let (mut fleet, mut tried): (Option<Fleet>, bool) = (None, false);
    for scenario in scenarios {
        let fleet = match &mut fleet {
            Some(same) if same.lanes == scenario.prefill_lanes => same,
            other => {
                // The engines before these have ended by then: they would use CPU, if little.
                drop(other.take());
                let started = Fleet::start(options, scenario.prefill_lanes, routers).await?;
                taken.info.measured.insert(started.lanes, started.measured()?);
                other.insert(started)
            }
        };
        if !tried {
            tried = true;
            trials(fleet, taken).await?;
        }
        let mut not_measured = BTreeMap::new();
        let routers: Vec<Router> = routers
            .iter()
            .filter(|router| takes_part(options, scenario, router) && !taken.info.left_out.contains_key(router.name))
            .filter(|router| {
                let cpu_ms =
                    taken.info.routers.iter().find(|info| info.name == router.name).and_then(|info| info.cpu_ms);
                let why = peers::asks_too_much(
                    cpu_ms.unwrap_or(0.0) / 1e3,
                    scenario.per_second(),
                    taken.results.machine.cores,
                );
                why.map(|why| not_measured.insert(router.name.to_owned(), why)).is_none()
            })
            .copied()
            .collect();
        for (name, why) in &not_measured {
            eprintln!("{}: not measured: {name} {why}", scenario.name);
        }
        let mut runs: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
        let mut prompt_tokens = 0;
        for round in 0..scenario.rounds {
            let arrivals = scenario.arrivals(options.span().whole_s(), options.seed + round as u64).make().await?;
            prompt_tokens += arrivals.iter().map(|arrival| arrival.prompt_tokens).sum::<u64>();
            for place in peers::order(routers.len(), scenario.place() + round) {
                let run = one(options, scenario, &arrivals, &routers[place], fleet, round).await;
                let run = run.with_context(|| format!("{}, {}", scenario.name, routers[place].name))?;
                let cell = Cell::of(scenario.name, routers[place].name, std::slice::from_ref(&run));
                eprintln!("{} round {}: {}", scenario.name, round + 1, brief(&cell));
                for (why, count) in run.failures() {
                    eprintln!("  {count} x {why}");
                }
                runs.entry(place).or_default().push(run);
            }
        }
        taken.results.scenarios.push(ScenarioInfo {
            command: 0,
            name: scenario.name.into(),
            what: scenario.what.into(),
            per_second: scenario.per_second(),
            rounds: scenario.rounds,
            prompt_tokens_per_s: Some(prompt_tokens as f64 / (options.span().whole_s() * scenario.rounds as f64)),
            prefill_tokens_per_s: scenario.prefill_tokens_per_s(),
            not_measured,
        });
        let cells: Vec<Cell> =
            runs.iter().map(|(place, runs)| Cell::of(scenario.name, routers[*place].name, runs)).collect();
        println!("\n{}: {}, {:.1} requests/s", scenario.name, scenario.what, scenario.per_second());
        output::table(&COLUMNS, &cells.iter().map(row).collect::<Vec<_>>());
        taken.results.cells.extend(cells);
        // All of it takes long; what is there is not lost when somebody ends it.
        taken.save(options)?;
    }
    Ok(())
}

fn takes_part(options: &Options, scenario: &Scenario, router: &Router) -> bool {
    match router.when {
        _ if router.is_control() => scenario.everybody,
        When::Everybody if options.only.is_empty() => scenario.everybody,
        _ => true,
    }
}

/// What a request costs each of the routers. Whoever does not serve it is left out, unless it is ours.
async fn trials(fleet: &mut Fleet, taken: &mut Taken) -> Result<()> {
    let Taken { earlier, info: command, .. } = taken;
    let earlier = earlier.as_ref().map(Results::routers).unwrap_or_default();
    for info in &mut command.routers {
        let router = Router::named(&info.name).context("a router that nobody knows")?;
        if router.is_control() {
            continue;
        }
        let known = earlier.iter().find(|known| known.is_same(info)).and_then(|known| known.cpu_ms);
        if known.is_some() {
            info.cpu_ms = known;
            continue;
        }
        match tried(&router, fleet).await {
            Ok(cpu_s) => {
                eprintln!("{}: {:.1} ms of CPU per streamed request", info.name, cpu_s * 1e3);
                info.cpu_ms = Some(cpu_s * 1e3);
            }
            Err(error) if router.is_ours() => return Err(error),
            Err(error) => {
                eprintln!("left out: {}: {error:#}", info.name);
                let why = format!("{error:#}").lines().next().unwrap_or_default().to_owned();
                command.left_out.insert(info.name.clone(), format!("does not serve: {why}"));
            }
        }
    }
    command.routers.retain(|info| !command.left_out.contains_key(&info.name));
    Ok(())
}

async fn tried(router: &Router, fleet: &mut Fleet) -> Result<f64> {
    let mut running = router.start(&fleet.setup).await?;
    let cpu_s = peers::trial(&mut running).await.with_context(|| router.name)?;
    running.stop().await?;
    Ok(cpu_s)
}

async fn one(
    options: &Options,
    scenario: &Scenario,
    arrivals: &[peers::Arrival],
    router: &Router,
    fleet: &mut Fleet,
    round: usize,
) -> Result<Run> {
    fleet.engines.anew().await?;
    let mut running = router.start(&fleet.setup).await?;
    let run = Run::take(scenario, options.span(), arrivals, &mut running, &mut fleet.engines).await;
    if let Some(dir) = &options.logs {
        let lines: Vec<String> = running.access_log().iter().map(ToString::to_string).collect();
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join(format!("{}-{}-{}.jsonl", scenario.name, router.name, round + 1)), lines.join("\n"))?;
    }
    let run = match run {
        Ok(run) => run,
        Err(error) => bail!("{error:#}\n{}", running.log_tail()),
    };
    running.stop().await?;
    Ok(run)
}

async fn costs(options: &Options, routers: &[Router], taken: &mut Taken) -> Result<()> {
    let engines = Engines::instant(&std::env::current_exe()?, 4).await?;
    let setup = Setup { engines: engines.members(), measured: None, pool: options.pool.clone() };
    let mut running = Vec::new();
    let wanted = |router: &&Router| router.llm_aware || router.name == "envoy-least-request";
    for router in routers.iter().filter(wanted).filter(|router| !taken.info.left_out.contains_key(router.name)) {
        running.push((router.name, router.start(&setup).await?));
    }
    let (turn, rounds) = if options.quick { (0.2, 1) } else { (0.7, 5) };
    taken.results.costs = peers::cost(&mut running, Duration::from_secs_f64(turn), rounds).await?;
    for (_, router) in running {
        router.stop().await?;
    }
    let rows: Vec<Vec<String>> = taken
        .results
        .costs
        .iter()
        .map(|cost| {
            let [median, least, greatest] = cost.total_us;
            let parts: Vec<String> = cost.cpu_us.iter().map(|(part, us)| format!("{part} {us:.0}")).collect();
            vec![
                format!("{} {}", cost.size, cost.router),
                format!("{median:.0}"),
                format!("({least:.0} .. {greatest:.0})"),
                parts.join(" "),
                format!("{:.0}", cost.latency_us),
            ]
        })
        .collect();
    println!("\nCPU of the router per request, us");
    output::table(&["", "median", "(min .. max)", "parts", "latency p50"], &rows);
    Ok(())
}

const COLUMNS: [&str; 11] =
    ["router", "TTFT p50", "p99 s", "TPOT p50", "p99 ms", "whole p50", "p99 s", "failed", "shed", "hits", "shares %"];

fn row(cell: &Cell) -> Vec<String> {
    let show = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    vec![
        cell.router.clone(),
        show(cell.ttft_s.map(|q| q.p50), 2),
        show(cell.ttft_s.map(|q| q.p99), 2),
        show(cell.tpot_ms.map(|q| q.p50), 1),
        show(cell.tpot_ms.map(|q| q.p99), 1),
        show(cell.end_s.map(|q| q.p50), 2),
        show(cell.end_s.map(|q| q.p99), 1),
        cell.failed.to_string(),
        cell.shed.to_string(),
        format!("{:.2}", cell.hit_rate),
        cell.shares.values().map(|share| format!("{:.0}", share * 100.0)).collect::<Vec<_>>().join("/"),
    ]
}

fn brief(cell: &Cell) -> String {
    let named: Vec<String> = COLUMNS.iter().zip(row(cell)).map(|(name, value)| format!("{name} {value}")).collect();
    let cpu: Vec<String> = cell.cpu_us.iter().map(|(part, us)| format!("{part} {us:.0} us")).collect();
    let cores = format!("generator {:.2} cores, engines {:.2}", cell.generator_cores, cell.engines_cores);
    let late = cell.late_ms.map_or(0.0, |late| late.p99);
    let added = cell.added_ms.map_or("-".to_owned(), |added| format!("{:.1}/{:.1}", added.p50, added.p99));
    format!(
        "{}; {} requests, {}, late p99 {late:.1} ms, added {added} ms; {cores}",
        named.join(" "),
        cell.requests,
        cpu.join(" ")
    )
}

/// As it was asked for; where the results and logs go says nothing about them.
fn command() -> String {
    let mut words = vec!["scripts/bench".to_owned()];
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" | "--logs" | "--remark" => drop(arguments.next()),
            _ => words.push(argument),
        }
    }
    words.join(" ")
}

async fn today() -> Result<String> {
    let output = tokio::process::Command::new("date").args(["-u", "+%Y-%m-%d"]).output().await?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// The page about it.
#[derive(Debug, clap::Args)]
pub(crate) struct PageOptions {
    /// What `peers --json` wrote.
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.json")]
    from: PathBuf,
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "docs/benchmarks.md")]
    to: PathBuf,
}

pub(crate) async fn page(options: &PageOptions) -> Result<()> {
    let root = artifacts::root();
    let from = root.join(&options.from);
    let results = read(&from).with_context(|| format!("--from {}", from.display()))?;
    for CommandInfo { command, commit, .. } in &results.commands {
        let known = peers::came_after(commit).await;
        ensure!(known, "{command}: of commit {commit}, from which nothing here comes: measure it again");
    }
    let to = root.join(&options.to);
    std::fs::write(&to, peers::page::page(&results)).with_context(|| format!("--to {}", to.display()))
}
