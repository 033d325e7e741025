//! Decides whether a DNS name is resolved on this machine or as at the target.

use crate::outgoing::{Side, choose_by_filter};
use crate::settings::{AddressFilter, DnsSettings};

#[derive(Debug, Clone)]
pub struct DnsRules {
    enabled: bool,
    filter: Option<AddressFilter>,
}

impl DnsRules {
    pub fn new(settings: &DnsSettings) -> Self {
        Self {
            enabled: settings.enabled,
            filter: settings.filter.clone(),
        }
    }

    /// Whether any name is resolved as at the target.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Decides about a query for `name`. The port is that of the later connection, if it is known.
    pub fn choose(&self, name: &str, port: Option<u16>) -> Side {
        if !self.enabled {
            return Side::Local;
        }
        choose_by_filter(self.filter.as_ref(), |pattern| {
            pattern.matches_name(name, port)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    #[test]
    fn names_are_chosen() {
        for (dns, name, port, expected) in [
            ("true", "db", None, Side::Remote),
            ("false", "db", None, Side::Local),
            ("{filter: {local: [db]}}", "db", None, Side::Local),
            ("{filter: {local: [db]}}", "DB.", None, Side::Local),
            ("{filter: {local: [db]}}", "db2", None, Side::Remote),
            (
                "{filter: {remote: ['*.shop']}}",
                "db.shop",
                None,
                Side::Remote,
            ),
            (
                "{filter: {remote: ['*.shop']}}",
                "example.com",
                None,
                Side::Local,
            ),
            (
                "{filter: {remote: ['db:5432']}}",
                "db",
                Some(5432),
                Side::Remote,
            ),
            ("{filter: {remote: ['db:5432']}}", "db", None, Side::Local),
            (
                "{filter: {local: ['10.0.0.0/8']}}",
                "10.1.2.3",
                None,
                Side::Local,
            ),
            (
                "{enabled: false, filter: {remote: [db]}}",
                "db",
                None,
                Side::Local,
            ),
        ] {
            let text = format!("feature: {{network: {{dns: {dns}}}}}");
            let resolved = Layers::new()
                .file("test", &text, Format::Yaml)
                .resolve()
                .unwrap();
            let rules = DnsRules::new(&resolved.settings.feature.network.dns);
            assert_eq!(rules.choose(name, port), expected, "{dns} {name}");
        }
    }
}
