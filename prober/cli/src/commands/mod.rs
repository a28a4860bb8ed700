//! The commands: one file each, or two that belong together.

mod bootstrap;
mod drain;
mod explain;
mod files;
mod pin;
mod probe;
mod source;
mod status;
mod top;
mod validate;

use clap::CommandFactory;

use crate::args::{Command, Global, Options, Shell};
use crate::client::Prober;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Does what is asked.
///
/// # Errors
/// Why it did not.
pub async fn run(options: Options, out: Output) -> Result<Exit, Failure> {
    let Options { global, command } = options;
    let prober = || prober(&global);
    match command {
        Command::Status => status::run(&prober()?, out).await,
        Command::Top(top) => top::run(&prober()?, out, &top).await,
        Command::Pin(pin) => pin::pin(&prober()?, out, &pin).await,
        Command::Unpin(one) => pin::unpin(&prober()?, out, &one.id).await,
        Command::Probe(probe) => probe::run(&prober()?, out, &probe).await,
        Command::Drain(drain) => drain::drain(&prober()?, out, &drain).await,
        Command::Undrain(one) => drain::undrain(&prober()?, out, &one.id).await,
        Command::Explain(explain) => match &explain.file {
            Some(file) => explain::file(file, out),
            None => explain::asked(&prober()?, out, &explain).await,
        },
        Command::Validate(validate) => validate::run(&validate, out),
        Command::Bootstrap(bootstrap) => bootstrap::run(&bootstrap, out),
        Command::Completions(completions) => {
            complete(completions.shell);
            Ok(Exit::Ok)
        }
    }
}

/// Whom to ask.
fn prober(global: &Global) -> Result<Prober, Failure> {
    let token = match &global.token_file {
        Some(path) => Some(files::read(path)?),
        None => std::env::var("WEIGHBRIDGE_TOKEN").ok(),
    };
    let token = token.as_deref().map(|text| text.lines().next().unwrap_or_default().trim());
    Prober::new(global.url.clone(), token, global.ca_file.as_deref())
}

fn complete(shell: Shell) {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "weighbridge", &mut script);
    // Whoever reads may have seen enough.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), &script);
}
