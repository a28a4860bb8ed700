//! `status`

use crate::client::Prober;
use crate::exit::{Exit, Failure};
use crate::fleet::Fleet;
use crate::output::Output;
use crate::view;

pub(super) async fn run(prober: &Prober, out: Output) -> Result<Exit, Failure> {
    let document = prober.get("/v1/fleet").await?;
    let fleet = Fleet::of(&document)?;
    out.result(&document, || view::everything(&fleet, usize::MAX).join("\n"));
    Ok(if view::is_well(&fleet) { Exit::Ok } else { Exit::Problems })
}
