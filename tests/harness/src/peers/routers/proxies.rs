//! nginx and HAProxy, as one sets them up for streams.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use tokio::process::Command;

use super::{Front, Part, Running, Setup, WORKERS, answers, place, weights, write};
use crate::child::ManagedChild;

/// Requests that a simulated engine runs at once.
const AT_ONCE: usize = 32;
/// The largest weight that HAProxy takes.
const MOST_WEIGHT: f64 = 256.0;

pub(super) async fn nginx(program: &Path, setup: &Setup, told: bool) -> Result<Running> {
    let (dir, port) = place()?;
    let user = Command::new("id").arg("-un").output().await?.stdout;
    let text = nginx_config(setup, told, port.address(), dir.path(), String::from_utf8_lossy(&user).trim());
    let mut command = Command::new(program);
    command.arg("-p").arg(dir.path()).arg("-c").arg(write(dir.path(), "nginx.conf", &text)?);
    let mut child = ManagedChild::spawn("nginx", command, dir.path())?;
    // Its own page is no engine's: any engine says that it lives.
    answers(&mut child, port.address(), "/health", |_| true).await?;
    let front = Front::one(port.address());
    Ok(Running { front, parts: vec![("router", Part::Child(Box::new(child)))], _dir: dir, _ports: vec![port] })
}

fn nginx_config(setup: &Setup, told: bool, listen: SocketAddr, dir: &Path, user: &str) -> String {
    let engines = setup.engines.iter().zip(weights(setup, MOST_WEIGHT));
    let servers: String = engines
        .map(|((_, address, _), weight)| {
            let told = if told { format!(" weight={weight} max_conns={AT_ONCE}") } else { String::new() };
            format!("    server {address}{told};\n")
        })
        .collect();
    let dir = dir.display();
    format!(
        "daemon off;
user {user};
worker_processes {WORKERS};
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log {dir}/access.log;
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  client_max_body_size 64m;
  client_body_buffer_size 2m;
  upstream engines {{
    # Without a zone each worker counts for itself.
    zone engines 256k;
    least_conn;
{servers}    keepalive 256;
  }}
  server {{
    listen {listen} backlog=1024;
    keepalive_requests 1000000;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      # Tokens are sent on as they come.
      proxy_buffering off;
      proxy_read_timeout 600s;
      proxy_next_upstream error timeout http_429 http_502 http_503 non_idempotent;
      proxy_next_upstream_tries 3;
    }}
  }}
}}
"
    )
}

pub(super) async fn haproxy(program: &Path, setup: &Setup, told: bool) -> Result<Running> {
    let (dir, port) = place()?;
    let text = haproxy_config(setup, told, port.address());
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(write(dir.path(), "haproxy.cfg", &text)?);
    let mut child = ManagedChild::spawn("haproxy", command, dir.path())?;
    answers(&mut child, port.address(), "/health", |_| true).await?;
    let front = Front::one(port.address());
    Ok(Running { front, parts: vec![("router", Part::Child(Box::new(child)))], _dir: dir, _ports: vec![port] })
}

fn haproxy_config(setup: &Setup, told: bool, listen: SocketAddr) -> String {
    let engines = setup.engines.iter().zip(weights(setup, MOST_WEIGHT));
    let servers: String = engines
        .map(|((name, address, _), weight)| {
            let told = if told { format!(" weight {weight} maxconn {AT_ONCE}") } else { String::new() };
            format!("  server {name} {address} check inter 2s{told}\n")
        })
        .collect();
    format!(
        "global
  nbthread {WORKERS}
  maxconn 4096
defaults
  mode http
  # Otherwise it holds back the pieces of a stream.
  option http-no-delay
  option redispatch 1
  retries 3
  retry-on conn-failure empty-response response-timeout 502 503
  timeout connect 1s
  timeout client 600s
  timeout server 600s
  timeout http-keep-alive 600s
frontend gateway
  bind {listen}
  default_backend engines
backend engines
  balance leastconn
  option httpchk GET /health
{servers}"
    )
}

pub(super) async fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("-v").output().await?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    // `nginx version: nginx/1.22.1`, `HAProxy version 2.6.12-1+deb12u4 2026/10/17 - ...`
    let mut words = text.split([' ', '/', '\n']);
    words
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
        .map(str::to_owned)
        .context(text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        let engine = |name: &str, port, speed| (name.to_owned(), SocketAddr::from(([127, 0, 0, 1], port)), speed);
        Setup {
            engines: vec![engine("a", 11, 240.0), engine("b", 12, 960.0)],
            measured: None,
            pool: serde_json::Value::Null,
        }
    }

    #[test]
    fn both_name_every_engine_and_hold_back_no_token() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 10));
        let nginx = nginx_config(&setup(), false, listen, Path::new("/somewhere"), "somebody");
        let haproxy = haproxy_config(&setup(), false, listen);
        for wanted in [
            "server 127.0.0.1:11;",
            "server 127.0.0.1:12;",
            "listen 127.0.0.1:10 ",
            "proxy_buffering off;",
            "least_conn;",
        ] {
            assert!(nginx.contains(wanted), "{wanted}: {nginx}");
        }
        assert_eq!(nginx.matches('{').count(), nginx.matches('}').count());
        for wanted in
            ["server a 127.0.0.1:11 ", "server b 127.0.0.1:12 ", "bind 127.0.0.1:10\n", "http-no-delay", "leastconn"]
        {
            assert!(haproxy.contains(wanted), "{wanted}: {haproxy}");
        }
    }

    #[test]
    fn both_are_told_speeds_and_caps() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 10));
        let weighted = nginx_config(&setup(), true, listen, Path::new("/somewhere"), "somebody");
        for line in ["server 127.0.0.1:11 weight=64 max_conns=32;", "server 127.0.0.1:12 weight=256 max_conns=32;"] {
            assert!(weighted.contains(line), "{line}: {weighted}");
        }
        let weighted = haproxy_config(&setup(), true, listen);
        for (server, weight) in [("server a 127.0.0.1:11 ", 64), ("server b 127.0.0.1:12 ", 256)] {
            let line = weighted.lines().find(|line| line.contains(server)).unwrap();
            assert!(line.ends_with(&format!(" weight {weight} maxconn 32")), "{line}");
        }
    }
}
