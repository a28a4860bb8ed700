//! The `weighbridge` program.

use std::process::ExitCode;

use clap::Parser;
use weighbridge_cli::args::Options;
use weighbridge_cli::commands;
use weighbridge_cli::output::Output;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let out = Output { json: options.global.json };
    match commands::run(options, out).await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            out.failure(&failure);
            failure.exit.into()
        }
    }
}
