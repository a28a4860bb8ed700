//! NVIDIA's DCGM exporter: how busy a machine's GPUs are.

use super::exposition::Line;

/// How busy one GPU is.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Its number on the machine, as the exporter says.
    pub index: String,
    /// Its UUID.
    pub uuid: String,
    /// 0 to 1.
    pub usage: f64,
}

/// Reads `DCGM_FI_DEV_GPU_UTIL` of every GPU. What is no number (a GPU that fell off the bus) is left out.
#[must_use]
pub fn parse_gpus(text: &str) -> Vec<Gpu> {
    let samples = text.lines().filter_map(Line::parse).filter(|line| line.name == "DCGM_FI_DEV_GPU_UTIL");
    let gpus = samples.filter_map(|line| {
        let told = |label| line.label(label).unwrap_or_default().to_owned();
        // DCGM's own marks for "not available" are huge numbers.
        let percent = line.value.filter(|percent| *percent <= 100.0)?;
        Some(Gpu { index: told("gpu"), uuid: told("UUID"), usage: percent / 100.0 })
    });
    gpus.collect()
}

/// The mean over the GPUs that are named, by index or UUID; over all when none is named. `None` when there is none.
#[must_use]
pub fn mean_usage(gpus: &[Gpu], named: &[String]) -> Option<f64> {
    let ours: Vec<f64> = gpus
        .iter()
        .filter(|gpu| named.is_empty() || named.iter().any(|name| *name == gpu.index || *name == gpu.uuid))
        .map(|gpu| gpu.usage)
        .collect();
    (!ours.is_empty()).then(|| ours.iter().sum::<f64>() / ours.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-a\",device=\"nvidia0\",modelName=\"NVIDIA RTX 6000\",Hostname=\"h\"} 90\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"GPU-b\",device=\"nvidia1\",modelName=\"NVIDIA RTX 6000\",Hostname=\"h\"} 30\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",UUID=\"GPU-c\"} 9223372036854775794\n\
        DCGM_FI_DEV_GPU_UTIL{gpu=\"3\",UUID=\"GPU-d\"} NaN\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 64\n";

    #[test]
    fn the_gpus_of_an_endpoint_are_averaged() {
        let gpus = parse_gpus(PAGE);
        let of = |named: &[&str]| mean_usage(&gpus, &named.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            (of(&[]), of(&["0"]), of(&["GPU-b"]), of(&["0", "GPU-b"])),
            (Some(0.6), Some(0.9), Some(0.3), Some(0.6))
        );
        assert_eq!((of(&["2"]), of(&["3"]), of(&["9"])), (None, None, None));
        assert!(parse_gpus("<html>}{").is_empty());
    }
}
