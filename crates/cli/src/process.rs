//! Facts about processes of this machine, from `/proc`.

use std::fs;

/// The state as one letter, as in `ps`: `R`, `S`, `T`, … `None` if there is no such process.
pub(crate) fn state(process: u32) -> Option<char> {
    fields(&stat(process)?)?.0.chars().next()
}

/// Whether the process was stopped, as by Ctrl-Z or by a debugger.
pub(crate) fn is_stopped(process: u32) -> bool {
    matches!(state(process), Some('T' | 't'))
}

pub(crate) fn parent(process: u32) -> Option<u32> {
    fields(&stat(process)?)?.1.parse().ok()
}

/// The children of all threads of the process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_whitespace().filter_map(|text| text.parse().ok());
            numbers.collect::<Vec<u32>>()
        })
        .collect()
}

/// The name that the kernel has for the program.
pub(crate) fn name(process: u32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

fn stat(process: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{process}/stat")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// State and parent. The format is "pid (name) state parent …", and the name may contain any characters.
fn fields(stat: &str) -> Option<(&str, &str)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_parsed_after_any_process_name() {
        assert_eq!(fields("12 (sleep) S 1 12"), Some(("S", "1")));
        assert_eq!(fields("12 (a) T (b) T 1 12"), Some(("T", "1")));
        assert_eq!(fields("nonsense"), None);
    }
}
