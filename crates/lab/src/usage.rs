//! What a lab uses of the machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The resource usage at one time. The difference of two, over the time between them, is the load of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes. Memory that processes share is counted once: the clusters run the same programs.
    pub memory: u64,
    /// Used since the lab started, including processes that have exited.
    pub processor_time: Duration,
}

/// The sum of the proportional set sizes of processes. A process that has exited in the meantime counts as zero.
pub(crate) fn memory_of(processes: &[i32]) -> u64 {
    processes
        .iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok())
        .filter_map(|text| proportional_set_size(&text))
        .sum()
}

/// The processes whose command line names a folder.
pub(crate) fn processes_mentioning(folder: &Path) -> Vec<i32> {
    let folder = folder.display().to_string();
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok())
        .filter(|pid| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            // An argument ends with a zero byte, and a path below this folder continues with a slash.
            ['\0', '/']
                .iter()
                .any(|end| line.contains(&format!("{folder}{end}")))
        })
        .collect()
}

/// Reads the text of `smaps_rollup`.
fn proportional_set_size(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_rollup_is_parsed() {
        let text = "00400000-7fff [rollup]\nRss:  9 kB\nPss:     2048 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(proportional_set_size(text), Some(2 << 20));
        assert_eq!(proportional_set_size(""), None);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(memory_of(&[own]) > 0);
    }
}
