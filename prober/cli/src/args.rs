//! The options. `docs/cli.md` is made of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use weighbridge_bootstrap::Target;

use crate::client::Url;

/// What the fleet does; pins, probes, drains; why a request went where it went; whether a configuration is right.
#[derive(Debug, Parser)]
#[command(name = "weighbridge", version, propagate_version = true, max_term_width = 100)]
pub struct Options {
    /// For all commands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// For all commands.
#[derive(Debug, Args)]
pub struct Global {
    /// Where the prober's REST API is.
    #[arg(
        long,
        global = true,
        env = "WEIGHBRIDGE_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7070",
        help_heading = "Global options"
    )]
    pub url: Url,
    /// A file whose first line is the prober's token; else the token is taken from WEIGHBRIDGE_TOKEN.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WEIGHBRIDGE_TOKEN_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub token_file: Option<PathBuf>,
    /// Authorities (PEM) that may have signed the prober's certificate; the system's when left out.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "WEIGHBRIDGE_CA_FILE",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    pub ca_file: Option<PathBuf>,
    /// JSON on stdout, errors as JSON on stderr.
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Pools, endpoints, Envoys and alarms. Exits with 1 when the prober is not ready or something is wrong.
    Status,
    /// The same, as it changes; `q` ends it. Where stdout is no terminal, it is printed once.
    Top(Top),
    /// Set an endpoint's weight until `unpin`.
    Pin(Pin),
    /// Give an endpoint its measured weight back.
    Unpin(One),
    /// Measure an endpoint anew, once it is idle.
    Probe(Probe),
    /// Send an endpoint no more requests; those under way finish.
    Drain(Drain),
    /// Take an endpoint back into service.
    Undrain(One),
    /// Say in sentences why requests went where they went, and what took how long.
    Explain(Explain),
    /// Say what is wrong with a prober's configuration, or with an Envoy bootstrap. Exits with 1 when there is an error.
    Validate(Validate),
    /// Print an Envoy configuration for a prober's configuration.
    Bootstrap(Bootstrap),
    /// Print what a shell needs to complete commands and options.
    Completions(Completions),
}

/// An endpoint.
#[derive(Debug, Args)]
pub struct One {
    /// The endpoint's id.
    #[arg(value_name = "ENDPOINT")]
    pub id: String,
}

/// `top`
#[derive(Debug, Args)]
pub struct Top {
    /// End after so many screens.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Ask so often where the prober does not tell of changes by itself.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub interval: Duration,
}

/// `pin`
#[derive(Debug, Args)]
pub struct Pin {
    /// The endpoint's id.
    #[arg(value_name = "ENDPOINT")]
    pub id: String,
    /// From 0.01 to 100.
    #[arg(value_parser = weight, allow_negative_numbers = true)]
    pub weight: f64,
    /// Why, for the next person who looks.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}

/// `probe`
#[derive(Debug, Args)]
pub struct Probe {
    /// The endpoint's id.
    #[arg(value_name = "ENDPOINT")]
    pub id: String,
    /// Show progress, and end with the result.
    #[arg(long)]
    pub wait: bool,
    /// Do not wait until the endpoint is idle.
    #[arg(long)]
    pub force: bool,
    /// How long to wait.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time, requires = "wait")]
    pub timeout: Duration,
}

/// `drain`
#[derive(Debug, Args)]
pub struct Drain {
    /// The endpoint's id.
    #[arg(value_name = "ENDPOINT")]
    pub id: String,
    /// Why, for the next person who looks.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// How long it may take until it is empty, from 1s; the prober's `drain.deadline` when left out.
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub deadline: Option<Duration>,
    /// End when no request is left there (0), or when some are after the deadline (1).
    #[arg(long)]
    pub wait: bool,
    /// How long to wait.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time, requires = "wait")]
    pub timeout: Duration,
}

/// `explain`
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["file", "request_id", "slow_ms", "endpoint", "pool", "since"]))]
pub struct Explain {
    /// A decision record, several of them, lines of Envoy's access log, or an answer of GET /v1/decisions; `-` reads standard
    /// input. Without it, the prober is asked.
    #[arg(value_name = "FILE", conflicts_with_all = ["request_id", "slow_ms", "endpoint", "pool", "since"])]
    pub file: Option<PathBuf>,
    /// The request with this x-request-id.
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Those that took at least so many ms.
    #[arg(long, value_name = "N")]
    pub slow_ms: Option<u64>,
    /// That picked, tried, or were answered by this endpoint.
    #[arg(long, value_name = "ID")]
    pub endpoint: Option<String>,
    /// Of this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// That ended since then: `15m` ago, or at a time such as 2026-01-31T03:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// At most so many, the newest first.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
}

/// `validate`
#[derive(Debug, Args)]
pub struct Validate {
    /// A prober's configuration, an Envoy bootstrap (YAML or JSON), or parts of one as envoy/mesh/envoy-snippet.yaml has them; `-`
    /// reads standard input.
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    /// For a bootstrap: the configuration of its prober, for pools and max_body.
    #[arg(long, value_name = "FILE")]
    pub prober: Option<PathBuf>,
    /// Exit with 1 for warnings, too.
    #[arg(long)]
    pub strict: bool,
}

/// What kind of Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// An Envoy whose only job is the gateway: a whole bootstrap.
    Standalone,
    /// An Envoy that others run: what to put into its configuration.
    Mesh,
}

/// `bootstrap`
#[derive(Debug, Args)]
pub struct Bootstrap {
    /// A prober's configuration.
    #[arg(value_name = "PROBER_FILE")]
    pub config: PathBuf,
    /// What kind of Envoy.
    #[arg(long, value_enum, default_value_t = Mode::Standalone)]
    pub mode: Mode,
    /// Standalone: where the gateway listens; 127.0.0.1:8080 when left out.
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Standalone: where Envoy's admin interface listens; 127.0.0.1:9901 when left out.
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<std::net::SocketAddr>,
    /// Standalone: Envoy's name, by which the prober tells Envoys apart, another one for each; weighbridge-gateway-1 when left out.
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,
    /// Where Envoy reaches a prober's REST API, when not at `api.listen`; once for each prober.
    #[arg(long, value_name = "HOST:PORT")]
    pub api: Vec<Target>,
    /// Where Envoy reaches a prober's xDS, when not at `xds.listen`; once for each prober.
    #[arg(long, value_name = "HOST:PORT")]
    pub xds: Vec<Target>,
    /// The module, as Envoy sees it, when not at `filter.wasm`.
    #[arg(long, value_name = "FILE")]
    pub wasm: Option<PathBuf>,
    /// Where the prober speaks TLS: authorities (PEM), as Envoy sees the file.
    #[arg(long, value_name = "FILE")]
    pub prober_ca_file: Option<PathBuf>,
    /// The name in the certificate of every prober, when not the host of its --api and --xds.
    #[arg(long, value_name = "NAME")]
    pub prober_name: Option<String>,
    /// Where the prober asks for a certificate: Envoy's, as Envoy sees the file.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    pub cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    pub key_file: Option<PathBuf>,
}

/// `completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell.
    pub shell: Shell,
}

/// A shell.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// A number that JSON has. The prober says whether it is in its range, which is named here for what is none.
fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse().ok().filter(|weight: &f64| weight.is_finite());
    weight.ok_or_else(|| "expected a number from 0.01 to 100".to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| "expected a time such as 500ms, 30s or 15m".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    time(text)
        .ok()
        .filter(|time| time.as_secs() > 0)
        .ok_or_else(|| "expected a time from 1s, such as 30s or 15m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_fit_together() {
        Options::command().debug_assert();
    }

    #[test]
    fn an_explanation_is_of_a_file_or_of_what_the_prober_has() {
        let parse = |line: &str| Options::try_parse_from(line.split_whitespace());
        for good in [
            "w explain -",
            "w explain --request-id x",
            "w explain --slow-ms 900 --since 15m",
            "w probe a --wait --timeout 1m",
            "w drain a --deadline 1s",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "w explain",
            "w explain - --since 15m",
            "w probe a --timeout 1m",
            "w pin a",
            "w bootstrap f --cert-file c",
            "w top --interval 0s",
            "w drain a --deadline 999ms",
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
        for value in ["heavy", "nan", "inf", "1,5"] {
            let error = parse(&format!("w pin a {value}")).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(text.contains(&format!("'{value}'")) && text.contains("<WEIGHT>"), "{text}");
            assert!(text.contains("expected a number from 0.01 to 100"), "{text}");
        }
        // It is the prober that says what is out of range: -1 is no option.
        for (value, weight) in [("-1", -1.0), ("-0.5", -0.5), ("1000", 1000.0), ("1 --reason x", 1.0)] {
            let parsed = parse(&format!("w pin a {value}")).unwrap().command;
            assert!(matches!(&parsed, Command::Pin(pin) if pin.weight == weight), "{parsed:?}");
        }
        let late = parse("w drain a --deadline 999ms").unwrap_err().to_string();
        assert!(late.contains("999ms") && late.contains("from 1s"), "{late}");
    }
}
