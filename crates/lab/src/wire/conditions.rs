//! The faults of the path from one endpoint to another, and their text form.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The maximum delay, including jitter. No real network is slower, and the limit keeps every deadline far from the end of the
/// clock's range.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// The conditions for packets from one endpoint to another.
///
/// The text form is `perfect`, or any of `cut`, `delay 20ms`, `jitter 5ms`, `loss 1%` and `rate 10mbit` with spaces between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conditions {
    /// No packet is delivered, not even those already in flight.
    pub cut: bool,
    /// Every packet is delayed by this time.
    #[serde(with = "delay_as_text")]
    pub delay: Duration,
    /// Every packet is delayed by an additional random time between zero and this. Packets are never reordered: a packet with a
    /// short delay waits for the one before it.
    #[serde(with = "delay_as_text")]
    pub jitter: Duration,
    /// The share of the packets that is dropped.
    pub loss: Loss,
    /// The rate limit, counted over whole IP packets.
    pub rate: Option<Rate>,
}

impl Conditions {
    /// The conditions of a disconnected cable.
    pub fn cut() -> Self {
        Self {
            cut: true,
            ..Self::default()
        }
    }

    pub fn delayed_by(delay: Duration) -> Self {
        Self {
            delay,
            ..Self::default()
        }
    }

    /// Whether there is no fault: every packet is delivered at once.
    pub fn is_perfect(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the fault depends on the number or size of packets, so that it needs single packets as on a real cable and not
    /// offloaded ones of up to 64 KiB.
    pub(super) fn needs_single_packets(&self) -> bool {
        self.loss != Loss::NONE || self.rate.is_some()
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.cut {
            parts.push("cut".to_owned());
        }
        if self.delay > Duration::ZERO {
            parts.push(format!("delay {:?}", self.delay));
        }
        if self.jitter > Duration::ZERO {
            parts.push(format!("jitter {:?}", self.jitter));
        }
        if self.loss != Loss::NONE {
            parts.push(format!("loss {}", self.loss));
        }
        if let Some(rate) = self.rate {
            parts.push(format!("rate {rate}"));
        }
        if parts.is_empty() {
            parts.push("perfect".to_owned());
        }
        formatter.write_str(&parts.join(" "))
    }
}

impl FromStr for Conditions {
    type Err = ConditionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut conditions = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| ConditionsError::MissingValue(word.to_owned()))
            };
            match word {
                "perfect" => conditions = Self::default(),
                "cut" => conditions.cut = true,
                "delay" => conditions.delay = parse_delay(value()?)?,
                "jitter" => conditions.jitter = parse_delay(value()?)?,
                "loss" => conditions.loss = value()?.parse()?,
                "rate" => conditions.rate = Some(value()?.parse()?),
                _ => return Err(ConditionsError::UnknownWord(word.to_owned())),
            }
        }
        Ok(conditions)
    }
}

/// A share of the packets, from none to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Loss(f64);

impl Loss {
    pub const NONE: Self = Self(0.0);
    pub const ALL: Self = Self(1.0);

    /// The share of packets that is lost, from 0.0 to 1.0.
    pub fn from_ratio(ratio: f64) -> Result<Self, ConditionsError> {
        if (0.0..=1.0).contains(&ratio) {
            Ok(Self(ratio))
        } else {
            Err(ConditionsError::Loss(format!("{}%", ratio * 100.0)))
        }
    }

    pub fn ratio(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded, because 0.07 times 100 is a little more than 7 in binary.
        let percent = (self.0 * 1e8).round() / 1e6;
        write!(formatter, "{percent}%")
    }
}

impl FromStr for Loss {
    type Err = ConditionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ConditionsError::Loss(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(invalid)?;
        let percent: f64 = number.trim().parse().map_err(|_| invalid())?;
        Self::from_ratio(percent / 100.0).map_err(|_| invalid())
    }
}

/// A rate in bits per second. It is never zero: that is a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate(NonZeroU64);

/// In descending order, so that the first unit that divides a rate gives the shortest text.
const RATE_UNITS: [(&str, u64); 4] = [
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1_000),
    ("bit", 1),
];

impl Rate {
    pub fn from_bits_per_second(bits: NonZeroU64) -> Self {
        Self(bits)
    }

    pub fn bits_per_second(self) -> u64 {
        self.0.get()
    }

    /// How long the transmission of this many bytes takes.
    pub(super) fn time_to_send(self, bytes: usize) -> Duration {
        let nanoseconds = bytes as u128 * 8 * 1_000_000_000 / u128::from(self.0.get());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// How many bytes are transmitted in this time.
    pub(super) fn bytes_in(self, time: Duration) -> u64 {
        let bytes = time.as_nanos() * u128::from(self.0.get()) / 8 / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second();
        let (unit, factor) = RATE_UNITS
            .into_iter()
            .find(|(_, factor)| bits.is_multiple_of(*factor))
            .unwrap_or(("bit", 1));
        write!(formatter, "{}{unit}", bits / factor)
    }
}

impl FromStr for Rate {
    type Err = ConditionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ConditionsError::Rate(text.to_owned());
        let (number, unit) = split_number(text);
        let (_, factor) = RATE_UNITS
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .ok_or_else(invalid)?;
        let number: f64 = number.parse().map_err(|_| invalid())?;
        // The conversion saturates, which only affects rates above eighteen exabits per second.
        let bits = (number * factor as f64).round() as u64;
        NonZeroU64::new(bits).map(Self).ok_or_else(invalid)
    }
}

/// Reads a delay or jitter such as `20ms`, `1.5s` or `250us`.
pub fn parse_delay(text: &str) -> Result<Duration, ConditionsError> {
    let invalid = || ConditionsError::Delay(text.to_owned());
    let (number, unit) = split_number(text);
    let number: f64 = number.parse().map_err(|_| invalid())?;
    let nanoseconds_per_unit = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        // Zero is the one delay that needs no unit.
        "" if number == 0.0 => 0.0,
        _ => return Err(invalid()),
    };
    let delay = Duration::from_nanos((number * nanoseconds_per_unit).round() as u64);
    if delay > MAX_DELAY {
        return Err(invalid());
    }
    Ok(delay)
}

/// Splits `1.5mbit` into `1.5` and `mbit`.
fn split_number(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

/// Why a text is not a valid description of conditions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConditionsError {
    #[error(
        "`{0}` is not a delay of at most one minute; write a number and ns, us, ms or s, like 20ms"
    )]
    Delay(String),
    #[error("`{0}` is not a loss; write a percentage from 0% to 100%, like 1%")]
    Loss(String),
    #[error(
        "`{0}` is not a rate; write a number above zero and bit, kbit, mbit or gbit, like 10mbit (use cut to let nothing pass)"
    )]
    Rate(String),
    #[error("`{0}` needs a value after it, like `delay 20ms loss 1% rate 10mbit`")]
    MissingValue(String),
    #[error("`{0}` is not a condition; use perfect, cut, delay, jitter, loss or rate")]
    UnknownWord(String),
}

impl TryFrom<String> for Loss {
    type Error = ConditionsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Loss> for String {
    fn from(loss: Loss) -> Self {
        loss.to_string()
    }
}

impl TryFrom<String> for Rate {
    type Error = ConditionsError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

/// Serializes delays in the same form as on the command line.
mod delay_as_text {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        delay: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{delay:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_delay(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        for text in [
            "perfect",
            "cut",
            "delay 20ms",
            "delay 20ms jitter 1.5ms loss 1% rate 10mbit",
            "delay 250µs loss 0.1%",
            "cut delay 1.5s",
            "loss 7% rate 1500kbit",
            "loss 100% rate 1gbit",
            "rate 9600bit",
        ] {
            let conditions: Conditions = text.parse().unwrap();
            assert_eq!(conditions.to_string(), text);
            let file = serde_json::to_string(&conditions).unwrap();
            assert_eq!(
                serde_json::from_str::<Conditions>(&file).unwrap(),
                conditions,
                "{file}"
            );
        }
    }

    #[test]
    fn json_uses_the_text_form_of_values() {
        let conditions: Conditions = "delay 20ms loss 1% rate 10mbit".parse().unwrap();
        assert_eq!(
            serde_json::to_string(&conditions).unwrap(),
            r#"{"cut":false,"delay":"20ms","jitter":"0ns","loss":"1%","rate":"10mbit"}"#
        );
    }

    #[test]
    fn values_are_parsed() {
        assert_eq!(parse_delay("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(parse_delay("0"), Ok(Duration::ZERO));
        assert_eq!(parse_delay("250us"), Ok(Duration::from_micros(250)));
        assert_eq!("1%".parse::<Loss>().unwrap().ratio(), 0.01);
        assert_eq!("100%".parse(), Ok(Loss::ALL));
        for (text, bits) in [
            ("10mbit", 10_000_000),
            ("1gbit", 1_000_000_000),
            ("500kbit", 500_000),
            ("1.5Mbit", 1_500_000),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().bits_per_second(), bits);
        }
    }

    #[test]
    fn invalid_text_is_rejected_with_an_example() {
        for (text, example) in [
            ("delay 20", "20ms"),
            ("delay fast", "20ms"),
            ("delay 61s", "20ms"),
            ("delay -1ms", "20ms"),
            ("loss 1", "1%"),
            ("loss 101%", "1%"),
            ("loss NaN%", "1%"),
            ("rate 0mbit", "10mbit"),
            ("rate 10mbps", "10mbit"),
            ("rate", "delay 20ms"),
            ("slow", "perfect, cut"),
        ] {
            let error = text.parse::<Conditions>().unwrap_err().to_string();
            assert!(error.contains(example), "{text}: {error}");
        }
    }

    #[test]
    fn only_loss_and_rate_need_single_packets() {
        for (text, single) in [
            ("perfect", false),
            ("cut", false),
            ("delay 20ms jitter 5ms", false),
            ("loss 1%", true),
            ("rate 1gbit", true),
        ] {
            let conditions: Conditions = text.parse().unwrap();
            assert_eq!(conditions.needs_single_packets(), single, "{text}");
            assert_eq!(conditions.is_perfect(), text == "perfect");
        }
    }
}
