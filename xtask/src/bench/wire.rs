//! The overhead of the wire: its throughput compared with a plain pair of devices, and the error of its delay.

use std::time::Duration;

use anyhow::Result;

use super::Row;

pub(super) fn measure() -> Result<Vec<Row>> {
    let found = lab::wire::measure::measure(Duration::from_secs(3), 100)?;
    let gigabits = |bits: f64| bits / 1e9;
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let plain = gigabits(found.veth_bits_per_second);
    let single_packets = gigabits(found.wire_single_packets_bits_per_second);
    let expected = milliseconds(found.delayed_round_trip_expected);
    Ok(vec![
        Row::new(
            "throughput at 0 ms",
            gigabits(found.wire_bits_per_second),
            "Gbit/s",
        )
        .baseline(plain)
        .at_least(1.0),
        Row::new(
            "throughput packet by packet, as with loss or a rate",
            single_packets,
            "Gbit/s",
        )
        .baseline(plain),
        Row::new(
            "round trip at 0 ms, median",
            milliseconds(found.wire_round_trip),
            "ms",
        )
        .baseline(milliseconds(found.veth_round_trip)),
        Row::new(
            "round trip at 20 ms each way, median",
            milliseconds(found.delayed_round_trip),
            "ms",
        )
        .baseline(expected)
        .near(expected, 1.0),
    ])
}
