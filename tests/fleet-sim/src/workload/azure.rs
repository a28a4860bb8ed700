//! Azure's LLM inference traces: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`. Nothing is said about content, so no
//! prompt shares anything with another.

use std::path::Path;

use anyhow::{Context, ensure};
use engine_sim::model::{Nanos, nanos};

use super::{Call, Replay, checkpoints, mix};

/// Reads a trace, at most `limit` requests.
///
/// # Errors
/// Names the line that cannot be read.
pub fn read(path: &Path, limit: usize) -> anyhow::Result<Replay> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines().enumerate();
    let head = lines.next().map_or("", |(_, head)| head.trim());
    ensure!(head == "TIMESTAMP,ContextTokens,GeneratedTokens", "{}:1: not the head of an Azure trace", path.display());
    let mut times: Vec<(f64, Call)> = Vec::new();
    for (nth, line) in lines.filter(|(_, line)| !line.trim().is_empty()).take(limit) {
        let read = parse(line).with_context(|| format!("{}:{}: `{line}`", path.display(), nth + 1))?;
        let (at, prompt_tokens, output_tokens) = read;
        let hash = |tokens| mix(nth as u64, tokens);
        let call = Call {
            conversation: nth as u64,
            prompt_tokens: prompt_tokens.max(1),
            output_tokens: output_tokens.max(1),
            prefixes: checkpoints(&[prompt_tokens], hash),
            first: hash(0),
            ..Call::default()
        };
        times.push((at, call));
    }
    times.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let start = times.first().map_or(0.0, |(at, _)| *at);
    let calls: Vec<(Nanos, Call)> = times.into_iter().map(|(at, call)| (nanos(at - start), call)).collect();
    Ok(Replay::new(calls))
}

/// Seconds, prompt and output tokens.
fn parse(line: &str) -> Option<(f64, u64, u64)> {
    let mut fields = line.trim().split(',');
    let time = seconds(fields.next()?)?;
    Some((time, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Seconds since some midnight of `YYYY-MM-DD hh:mm:ss.fffffff`.
fn seconds(timestamp: &str) -> Option<f64> {
    let (date, time) = timestamp.split_once(' ')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    // Days since a fixed day (Fliegel and Van Flandern, 1968); only differences matter.
    let shift = (month - 14) / 12;
    let days = (1_461 * (year + 4_800 + shift)) / 4 + (367 * (month - 2 - 12 * shift)) / 12
        - (3 * ((year + 4_900 + shift) / 100)) / 4
        + day
        - 2_460_000;
    let mut time = time.split(':');
    let (hours, minutes, seconds) = (time.next()?, time.next()?, time.next()?);
    let whole = days * 86_400 + hours.parse::<i64>().ok()? * 3_600 + minutes.parse::<i64>().ok()? * 60;
    Some(whole as f64 + seconds.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn a_trace_is_read_in_order_and_shares_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.csv");
        let lines = [
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-30 23:59:59.5000000,4808,10",
            "2023-12-01 00:00:01.5000000,100,0",
        ];
        std::fs::write(&path, lines.join("\r\n")).unwrap();
        let mut replay = read(&path, 10).unwrap();
        assert_eq!((replay.len(), replay.rate(), replay.faster(4.0).rate()), (2, 1.0, 4.0));
        let first = replay.take().unwrap();
        assert_eq!((first.prompt_tokens, first.output_tokens, first.blocks.len()), (4_808, 10, 0));
        assert_eq!(replay.next_at(), Some(2_000_000_000));
        let second = replay.take().unwrap();
        assert_eq!((second.prompt_tokens, second.output_tokens), (100, 1));
        assert!(first.prefixes.iter().all(|prefix| !second.prefixes.contains(prefix)));
        std::fs::write(&path, "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2").unwrap();
        assert!(read(&path, 9).unwrap_err().to_string().contains("trace.csv:2"));
    }
}
