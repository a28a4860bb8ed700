//! All that was measured.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::figures::{Cell, Span};
use super::machine::Machine;
use super::scenario::Scenario;

/// Of one run of the benchmark, or of several that were put together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// What was run.
    pub commands: Vec<CommandInfo>,
    /// At what load, and what went wrong; in the order of [`super::SCENARIOS`].
    pub scenarios: Vec<ScenarioInfo>,
    /// A router in a scenario each.
    pub cells: Vec<Cell>,
    /// What a request costs by the size of its body.
    pub costs: Vec<Cost>,
}

/// The benchmark, run once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandInfo {
    /// What was run.
    pub command: String,
    /// The commit; with a `+`, and changes that were not committed.
    pub commit: String,
    /// When it began: the day.
    pub date: String,
    /// Load averages over 1, 5 and 15 minutes before the beginning: what else was going on.
    pub load_before: String,
    /// What else is to be known about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Warm-up and measured time of every run.
    pub span: Span,
    /// Seed of the first round; the next has the next.
    pub seed: u64,
    /// Who took part.
    pub routers: Vec<RouterInfo>,
    /// Who did not, and why.
    pub left_out: BTreeMap<String, String>,
    /// What the prober measured beforehand, by the number of prompts that the engines prefill at once.
    pub measured: BTreeMap<usize, Vec<MeasuredEndpoint>>,
}

/// A router that took part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouterInfo {
    /// Its name.
    pub name: String,
    /// How it balances.
    pub how: String,
    /// Its version.
    pub version: String,
    /// Whether it reads prompts or models.
    pub llm_aware: bool,
    /// Whether we told it by hand how fast each engine is.
    #[serde(default)]
    pub told: bool,
    /// Its CPU per streamed request, in ms, tried beforehand. None where that was not tried.
    #[serde(default)]
    pub cpu_ms: Option<f64>,
}

/// An endpoint as the prober measured it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredEndpoint {
    /// Its id.
    pub id: String,
    /// Tokens per second of a burst.
    pub throughput_tps: f64,
    /// The weight that follows.
    pub weight: f64,
    /// The most requests it is given.
    pub max_in_flight: u64,
}

/// A scenario that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScenarioInfo {
    /// Which of [`Results::commands`] measured it.
    pub command: usize,
    /// Its name.
    pub name: String,
    /// What it is.
    pub what: String,
    /// Requests per second.
    pub per_second: f64,
    /// Rounds.
    pub rounds: usize,
    /// Prompt tokens per second, cached or not. None where it was not counted.
    #[serde(default)]
    pub prompt_tokens_per_s: Option<f64>,
    /// Prompt tokens per second that the engines prefill together at most, where that is a limit.
    #[serde(default)]
    pub prefill_tokens_per_s: Option<f64>,
    /// Routers that were not measured, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub not_measured: BTreeMap<String, String>,
}

/// CPU per request with bodies of a size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Which of [`Results::commands`] measured it.
    pub command: usize,
    /// Router.
    pub router: String,
    /// `4 KB`, `64 KB` or `1 MB`.
    pub size: String,
    /// CPU per request by part, in microseconds; the median of the rounds.
    pub cpu_us: BTreeMap<String, f64>,
    /// All parts together: median, least and greatest of the rounds.
    pub total_us: [f64; 3],
    /// Median time of a request, in microseconds; the median of the rounds.
    pub latency_us: f64,
}

impl RouterInfo {
    /// Whether it is the same program of the same version, set up in the same way.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.version, &self.how) == (&other.name, &other.version, &other.how)
    }
}

/// Figures of two machines say nothing beside each other.
#[derive(Debug)]
pub struct OtherMachine(Box<[Machine; 2]>);

impl fmt::Display for OtherMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, now] = &*self.0;
        write!(f, "measured on another machine: {before:?} before, {now:?} now")
    }
}

impl std::error::Error for OtherMachine {}

impl Results {
    /// The figures of a router in a scenario.
    #[must_use]
    pub fn cell(&self, scenario: &str, router: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.scenario == scenario && cell.router == router)
    }

    /// Whether we told the router of this name how fast each engine is.
    #[must_use]
    pub fn was_told(&self, router: &str) -> bool {
        self.commands.iter().flat_map(|command| &command.routers).any(|info| info.name == router && info.told)
    }

    /// Everybody who took part, once for each version and set-up.
    #[must_use]
    pub fn routers(&self) -> Vec<&RouterInfo> {
        let mut routers: Vec<&RouterInfo> = Vec::new();
        for info in self.commands.iter().flat_map(|command| &command.routers) {
            match routers.iter_mut().find(|known| known.is_same(info)) {
                // Not every command tries what a request costs.
                Some(known) if known.cpu_ms.is_none() => *known = info,
                Some(_) => {}
                None => routers.push(info),
            }
        }
        routers
    }

    /// These, and what was measured afterwards: a scenario that was measured again takes the place of the one before, whole, so
    /// that what stands in one table was measured in turns.
    ///
    /// # Errors
    /// When the others are of another machine.
    pub fn then(mut self, later: Self) -> Result<Self, OtherMachine> {
        if self.machine != later.machine {
            return Err(OtherMachine(Box::new([self.machine, later.machine])));
        }
        let again = |name: &str| later.scenarios.iter().any(|scenario| scenario.name == name);
        self.scenarios.retain(|scenario| !again(&scenario.name));
        self.cells.retain(|cell| !again(&cell.scenario));
        if !later.costs.is_empty() {
            self.costs.clear();
        }
        let before = self.commands.len();
        let moved = |command: usize| command + before;
        self.commands.extend(later.commands);
        self.scenarios
            .extend(later.scenarios.into_iter().map(|info| ScenarioInfo { command: moved(info.command), ..info }));
        self.costs.extend(later.costs.into_iter().map(|cost| Cost { command: moved(cost.command), ..cost }));
        self.cells.extend(later.cells);
        self.in_order();
        Ok(self)
    }

    /// Scenarios as they are known, commands as they were run; without commands of which nothing is left.
    fn in_order(&mut self) {
        self.scenarios.sort_by_key(|info| Scenario::named(&info.name).map_or(usize::MAX, |scenario| scenario.place()));
        let places: BTreeMap<&str, usize> =
            self.scenarios.iter().enumerate().map(|(place, info)| (info.name.as_str(), place)).collect();
        self.cells.sort_by_key(|cell| places.get(cell.scenario.as_str()).copied());
        let used = |at: usize| {
            self.scenarios.iter().any(|info| info.command == at) || self.costs.iter().any(|cost| cost.command == at)
        };
        let kept: Vec<usize> = (0..self.commands.len()).filter(|at| used(*at)).collect();
        let place = |command: usize| kept.iter().position(|at| *at == command).unwrap_or(0);
        self.scenarios.iter_mut().for_each(|info| info.command = place(info.command));
        self.costs.iter_mut().for_each(|cost| cost.command = place(cost.command));
        let mut at = 0..;
        self.commands.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
    }

    /// As JSON, lines short enough to compare, numbers to six digits: what is beyond is noise.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        round(&mut value);
        Ok(format!("{value:#}\n"))
    }
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or(0.0);
            *value = format!("{exact:.5e}").parse::<f64>().map_or(Value::Null, Value::from);
        }
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that measured these scenarios, and costs of this time.
    fn measured(command: &str, scenarios: &[&str], costs: Option<f64>) -> Results {
        let info = RouterInfo {
            name: "nginx".into(),
            how: "somehow".into(),
            version: "1".into(),
            llm_aware: false,
            told: false,
            cpu_ms: costs,
        };
        let scenario = |name: &&str| ScenarioInfo {
            command: 0,
            name: (*name).to_owned(),
            what: command.to_owned(),
            per_second: 1.0,
            rounds: 1,
            prompt_tokens_per_s: None,
            prefill_tokens_per_s: None,
            not_measured: BTreeMap::new(),
        };
        let cell = |name: &&str| Cell { scenario: (*name).to_owned(), router: command.to_owned(), ..Cell::default() };
        let cost = |latency_us| Cost {
            command: 0,
            router: "nginx".into(),
            size: "4 KB".into(),
            cpu_us: BTreeMap::new(),
            total_us: [1.0; 3],
            latency_us,
        };
        Results {
            machine: Machine { cores: 2, cpu: "c".into(), memory_bytes: 1, kernel: "k".into() },
            commands: vec![CommandInfo {
                command: command.to_owned(),
                commit: "c".into(),
                date: "d".into(),
                load_before: "0".into(),
                remark: None,
                span: Span { warm_up_s: 1.0, measured_s: 2.0 },
                seed: 1,
                routers: vec![info],
                left_out: BTreeMap::new(),
                measured: BTreeMap::new(),
            }],
            scenarios: scenarios.iter().map(scenario).collect(),
            cells: scenarios.iter().map(cell).collect(),
            costs: costs.map(cost).into_iter().collect(),
        }
    }

    /// Each scenario, and what the command of it was; the cells must be its own.
    fn by_command(results: &Results) -> Vec<(&str, &str)> {
        let scenarios = results.scenarios.iter().map(|info| {
            let command = results.commands[info.command].command.as_str();
            assert_eq!(info.what, command);
            assert!(results.cell(&info.name, command).is_some());
            (info.name.as_str(), command)
        });
        let scenarios: Vec<_> = scenarios.collect();
        assert_eq!(results.cells.len(), scenarios.len());
        scenarios
    }

    #[test]
    fn what_is_measured_again_takes_the_place_of_what_was() {
        let results = measured("a", &["load86", "killed"], Some(1.0));
        let results = results.then(measured("b", &["serial", "load120", "killed"], None)).unwrap();
        assert_eq!(by_command(&results), [("load86", "a"), ("load120", "b"), ("killed", "b"), ("serial", "b")]);
        assert_eq!(results.costs.iter().map(|cost| cost.command).collect::<Vec<_>>(), [0]);
        // Nothing is left of a: it goes, and what remains keeps its own.
        let results = results.then(measured("c", &["load86"], Some(3.0))).unwrap();
        assert_eq!(by_command(&results), [("load86", "c"), ("load120", "b"), ("killed", "b"), ("serial", "b")]);
        assert_eq!(results.commands.iter().map(|info| info.command.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(results.costs.iter().map(|cost| (cost.command, cost.latency_us)).collect::<Vec<_>>(), [(1, 3.0)]);
        // One router, of which one command knew more.
        assert_eq!(results.routers().iter().map(|info| info.cpu_ms).collect::<Vec<_>>(), [Some(3.0)]);
    }

    #[test]
    fn figures_of_another_machine_are_refused() {
        let mut other = measured("b", &["load86"], None);
        other.machine.cores = 64;
        let error = measured("a", &["load86"], None).then(other).unwrap_err().to_string();
        assert!(error.contains("another machine") && error.contains("64"), "{error}");
    }

    #[test]
    fn numbers_are_short_and_counts_stay() {
        let mut value = serde_json::json!({"a": [0.123_456_789, 12_345_678, 1_234_567.89], "b": 0.0});
        round(&mut value);
        assert_eq!(value, serde_json::json!({"a": [0.123_457, 12_345_678, 1_234_570.0], "b": 0.0}));
    }
}
