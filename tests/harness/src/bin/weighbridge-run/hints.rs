//! What the launcher prints to try: commands that work as they stand, with the models and endpoints that are served.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use harness::wire;
use serde_json::json;

use crate::traffic::DemoLoad;

/// Names to put into commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Example {
    pool: String,
    model: String,
    /// None where nothing is registered yet.
    endpoint: Option<String>,
    /// Whether the prober keeps records of decisions to explain.
    explained: bool,
}

impl Example {
    /// Of the first pool that has somebody to answer; `endpoint` rather than the first of it. None without a pool.
    pub(crate) fn of(snapshot: &wire::Snapshot, endpoint: Option<&str>) -> Option<Self> {
        let pools = &snapshot.pools;
        let pool = pools.iter().find(|pool| !pool.endpoints.is_empty()).or_else(|| pools.first())?;
        let of_pool = || pool.endpoints.first().map(|endpoint| endpoint.id.clone());
        Some(Self {
            pool: pool.name.clone(),
            model: pool.models.first()?.clone(),
            endpoint: endpoint.map(str::to_owned).or_else(of_pool),
            explained: snapshot.filter.decisions_per_second > 0,
        })
    }
}

/// Everything that is printed once both parts run.
pub(crate) struct Hints {
    pub(crate) gateway: SocketAddr,
    pub(crate) api: SocketAddr,
    /// The file of the token that the API wants.
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) example: Option<Example>,
    /// The demo's engines, a line each, and the load that it makes.
    pub(crate) demo: Option<(String, DemoLoad)>,
    /// The repository.
    pub(crate) root: PathBuf,
    pub(crate) logs: PathBuf,
}

/// A word of a shell's line.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What is written where in the directory of logs.
const FILES: [(&str, &str); 3] =
    [("envoy.err", "Envoy"), ("envoy.out", "its access log, a line of JSON per request"), ("prober.err", "the prober")];

/// Which log is in which file of the directory, of those files that there are.
fn files(logs: &Path) -> String {
    let there = FILES.iter().filter(|(file, _)| logs.join(file).exists());
    let named: Vec<String> = there.map(|(file, what)| format!("{file} ({what})")).collect();
    format!("{}: {}", logs.display(), named.join(", "))
}

/// What is said of the logs of a launcher that ended for an error.
pub(crate) fn kept(logs: &Path) -> String {
    format!("The logs are kept in {}", files(logs))
}

impl Hints {
    /// A command with its explanation before it.
    fn command(f: &mut fmt::Formatter<'_>, what: &str, line: &str) -> fmt::Result {
        writeln!(f, "  # {what}\n  {line}")
    }

    fn cli(&self, arguments: &str) -> String {
        let token = self.token_file.as_ref().map(|file| format!(" --token-file {}", quoted(&file.to_string_lossy())));
        format!("dist/weighbridge --url http://{}{} {arguments}", self.api, token.unwrap_or_default())
    }

    fn curl(&self, arguments: &str) -> String {
        let token = self
            .token_file
            .as_ref()
            .map(|file| format!(r#" -H "authorization: Bearer $(head -n 1 {})""#, quoted(&file.to_string_lossy())));
        format!("curl{} {}", token.unwrap_or_default(), arguments.replace("API", &format!("http://{}", self.api)))
    }

    fn chat(&self, model: &str, option: &str, stream: bool) -> String {
        // Written out, to read as one writes it.
        let (model, stream) = (json!(model), if stream { r#", "stream": true"# } else { "" });
        let body = format!(
            r#"{{"model": {model}, "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 32{stream}}}"#
        );
        format!(
            "curl {option} http://{}/v1/chat/completions -H 'content-type: application/json' \\\n    -d {}",
            self.gateway,
            quoted(&body)
        )
    }
}

impl fmt::Display for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((engines, load)) = &self.demo {
            write!(f, "\n{engines}")?;
            match load {
                DemoLoad::Light => writeln!(
                    f,
                    "Demo load: light. Once every endpoint is measured, a few people talk with the model (--demo-load off: nobody)."
                )?,
                DemoLoad::Off => writeln!(f, "Demo load: off (--demo-load light: a few people talk with the model).")?,
            }
        }
        writeln!(f, "\nThe page, in a browser: http://{}/", self.api)?;
        writeln!(f, "\nTry, in another terminal, in {}:", self.root.display())?;
        Self::command(f, "the fleet, in a terminal", &self.cli("status"))?;
        if let Some(Example { pool, model, endpoint, explained }) = &self.example {
            let routed = "a routed request; x-weighbridge-endpoint says who answered";
            Self::command(f, routed, &self.chat(model, "-i", false))?;
            if *explained {
                let explain = format!("explain --pool {} --limit 1", quoted(pool));
                Self::command(f, "why the last request went where it went", &self.cli(&explain))?;
            }
            Self::command(f, "the same request as a stream", &self.chat(model, "-N", true))?;
            Self::command(f, "what was measured, and what each Envoy has applied", &self.curl("API/v1/endpoints"))?;
            writeln!(f, "  {}", self.curl("API/v1/envoys"))?;
            if let Some(id) = endpoint {
                let pin = self.cli(&format!("pin {id} 4 --reason trial"));
                Self::command(f, "pin a weight, and let go of it again", &pin)?;
                writeln!(f, "  {}", self.cli(&format!("unpin {id}")))?;
            }
        }
        writeln!(f, "\nLogs, in {}.", files(&self.logs))?;
        write!(
            f,
            "Ctrl-C ends everything and removes them. When Envoy or the prober ends by itself, so does the other, and the logs stay.\n\
             While an endpoint is measured it takes no traffic; the weights follow here."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(pools: serde_json::Value) -> wire::Snapshot {
        let filter = json!({"decisions_per_second": 50});
        serde_json::from_value(json!({"format": 1, "version": 1, "filter": filter, "pools": pools})).unwrap()
    }

    fn hints(snapshot: &wire::Snapshot) -> Hints {
        Hints {
            gateway: ([127, 0, 0, 1], 8080).into(),
            api: ([127, 0, 0, 1], 7070).into(),
            token_file: None,
            example: Example::of(snapshot, None),
            demo: None,
            root: "/repository".into(),
            logs: "/logs".into(),
        }
    }

    #[test]
    fn commands_have_the_names_of_the_first_pool_that_can_answer() {
        let snapshot = snapshot(json!([
            {"name": "later", "models": ["later"], "endpoints": []},
            {"name": "qwen", "models": ["it's"], "endpoints": [{"id": "gpu-a", "address": "10.0.0.1:8000"}]},
        ]));
        let text = hints(&snapshot).to_string();
        assert!(text.contains(r#"{"model": "it'\''s", "messages""#), "{text}");
        for command in ["status", "explain --pool qwen --limit 1", "pin gpu-a 4 --reason trial", "unpin gpu-a"] {
            assert!(
                text.contains(&format!("  dist/weighbridge --url http://127.0.0.1:7070 {command}\n")),
                "{command}: {text}"
            );
        }
        assert!(!text.contains("Demo") && text.contains("Logs, in /logs: "), "{text}");
    }

    #[test]
    fn commands_send_the_token_that_the_api_wants() {
        let snapshot = snapshot(json!([{"name": "m", "models": ["m"], "endpoints": []}]));
        let text = Hints { token_file: Some("/a b/token".into()), ..hints(&snapshot) }.to_string();
        assert!(text.contains("--token-file '/a b/token' status\n"), "{text}");
        assert!(
            text.contains(
                r#"curl -H "authorization: Bearer $(head -n 1 '/a b/token')" http://127.0.0.1:7070/v1/envoys"#
            ),
            "{text}"
        );
        assert!(!text.contains("pin"), "nobody is there to be pinned: {text}");
    }

    #[test]
    fn logs_that_nobody_has_written_are_not_named() {
        let logs = tempfile::tempdir().unwrap();
        std::fs::write(logs.path().join("prober.err"), "").unwrap();
        assert!(kept(logs.path()).ends_with(": prober.err (the prober)"), "{}", kept(logs.path()));
        std::fs::write(logs.path().join("envoy.out"), "").unwrap();
        assert!(kept(logs.path()).contains(": envoy.out (its access log"), "{}", kept(logs.path()));
    }

    #[test]
    fn whether_the_demo_makes_load_is_said() {
        let snapshot = snapshot(json!([]));
        for (load, said) in [(DemoLoad::Off, "Demo load: off"), (DemoLoad::Light, "Demo load: light")] {
            let text = Hints { demo: Some(("engines\n".into(), load)), ..hints(&snapshot) }.to_string();
            assert!(text.contains(said), "{text}");
        }
    }
}
