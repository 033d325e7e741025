//! Human-readable durations.

use std::time::Duration;

pub(crate) fn display(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{} min {:02} s", whole / 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ones_have_tenths_and_long_ones_minutes() {
        for (milliseconds, text) in [
            (0, "0.0 s"),
            (1_240, "1.2 s"),
            (59_940, "59.9 s"),
            (59_960, "1 min 00 s"),
            (754_000, "12 min 34 s"),
        ] {
            assert_eq!(display(Duration::from_millis(milliseconds)), text);
        }
    }
}
