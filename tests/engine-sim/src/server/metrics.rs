//! `/metrics`, in vLLM's names and labels.

use std::fmt::Write;

use super::core::Reading;

/// The exposition text. Names that begin with `sim:` are the simulator's own.
pub(crate) fn render(reading: &Reading, model: &str) -> String {
    let mut page = Page { out: String::with_capacity(4096), labels: labels(model) };
    let stats = &reading.stats;
    let running = (stats.running + reading.hanging) as f64;
    page.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", running);
    page.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting as f64);
    page.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage);
    for (name, help, value) in [
        ("vllm:prefix_cache_queries", "Prefix cache queries, in queried tokens.", stats.cache_query_tokens),
        ("vllm:prefix_cache_hits", "Prefix cache hits, in cached tokens.", stats.cache_hit_tokens),
        ("vllm:prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
        ("vllm:generation_tokens", "Number of generation tokens processed.", stats.generated_tokens),
    ] {
        page.head(name, help, "counter");
        page.sample(&format!("{name}_total"), "", value as f64);
    }
    page.head("vllm:request_success", "Count of successfully processed requests.", "counter");
    let finished = reading.finished;
    for (reason, count) in [("stop", finished.stop), ("length", finished.length), ("abort", finished.abort)] {
        page.sample("vllm:request_success_total", &format!(",finished_reason=\"{reason}\""), count as f64);
    }
    page.head("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge");
    let (profile, args) = (&reading.profile, &reading.launch_args);
    let _ = writeln!(
        page.out,
        "vllm:cache_config_info{{block_size=\"{}\",cache_dtype=\"{}\",enable_prefix_caching=\"{}\",engine=\"0\",\
         gpu_memory_utilization=\"{}\",num_gpu_blocks=\"{}\"}} 1.0",
        profile.block_size_tokens,
        escape(&args.cache_dtype),
        if profile.prefix_caching { "True" } else { "False" },
        escape(&args.gpu_memory_utilization),
        profile.kv_blocks(),
    );
    page.gauge("sim:requests_running_max", "Most sequences that ran together.", stats.running_max as f64);
    page.gauge("sim:requests_in_flight_max", "Most requests under way together.", reading.in_flight_max as f64);
    page.head("sim:requests", "Generation requests received.", "counter");
    page.sample("sim:requests_total", "", reading.requests as f64);
    page.head("process_start_time_seconds", "Start time of the process since unix epoch in seconds.", "gauge");
    let _ = writeln!(page.out, "process_start_time_seconds {}", reading.started_s);
    page.out
}

struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail. Counters are announced with their suffix, as the Python client does.
        let suffix = if kind == "counter" { "_total" } else { "" };
        let _ = write!(self.out, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
    }

    fn sample(&mut self, name: &str, more_labels: &str, value: f64) {
        let _ = writeln!(self.out, "{name}{{{}{more_labels}}} {value:?}", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }
}

fn labels(model: &str) -> String {
    format!("engine=\"0\",model_name=\"{}\"", escape(model))
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Profile, Stats};
    use crate::server::core::Finished;
    use crate::server::launch_args::LaunchArgs;

    #[test]
    fn has_vllms_names_and_labels() {
        let stats = Stats { running: 3, cache_hit_tokens: 48, kv_usage: 0.25, ..Stats::default() };
        let finished = Finished { length: 7, ..Finished::default() };
        let reading = Reading {
            stats,
            profile: Profile::fast().into(),
            launch_args: LaunchArgs::parse("--kv-cache-dtype fp8"),
            requests: 11,
            in_flight_max: 5,
            hanging: 1,
            finished,
            started_s: 1_700_000_000.5,
        };
        let text = render(&reading, "a\"b");
        for line in [
            r#"vllm:num_requests_running{engine="0",model_name="a\"b"} 4.0"#,
            r#"vllm:kv_cache_usage_perc{engine="0",model_name="a\"b"} 0.25"#,
            r#"vllm:prefix_cache_hits_total{engine="0",model_name="a\"b"} 48.0"#,
            r#"vllm:request_success_total{engine="0",model_name="a\"b",finished_reason="length"} 7.0"#,
            r#"vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="16384"} 1.0"#,
            r#"sim:requests_in_flight_max{engine="0",model_name="a\"b"} 5.0"#,
            r#"sim:requests_total{engine="0",model_name="a\"b"} 11.0"#,
            "# TYPE vllm:generation_tokens_total counter",
            "process_start_time_seconds 1700000000.5",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }
}
