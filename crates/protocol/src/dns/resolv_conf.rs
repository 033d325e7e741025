//! `resolv.conf`: nameservers, search list and options.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

const PORT: u16 = 53;
// The limits of libc.
const MAX_NAMESERVERS: usize = 3;
const MAX_DOTS: u32 = 15;
const MAX_TIMEOUT_SECONDS: u32 = 30;
const MAX_ATTEMPTS: u32 = 5;

/// The settings in a `resolv.conf`, with libc's defaults for absent ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    pub nameservers: Vec<SocketAddr>,
    pub search: Vec<String>,
    /// A name with at least this many dots is first tried as an absolute name.
    pub dots: u32,
    pub timeout_seconds: u32,
    pub attempts: u32,
    pub rotate: bool,
    /// Use only TCP.
    pub tcp: bool,
    /// Whether the file has a search list.
    has_search: bool,
}

impl ResolvConf {
    /// Parses the text of the file.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let mut settings = Self {
            nameservers: Vec::new(),
            search: Vec::new(),
            dots: 1,
            timeout_seconds: 5,
            attempts: 2,
            rotate: false,
            tcp: false,
            has_search: false,
        };
        for line in String::from_utf8_lossy(text).lines() {
            if line.starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => settings
                    .nameservers
                    .extend(words.next().and_then(nameserver)),
                // The last `domain` or `search` line wins.
                Some("domain") => {
                    settings.search = words.next().map(domain).into_iter().collect();
                    settings.has_search = true;
                }
                Some("search") => {
                    settings.search = words.map(domain).collect();
                    settings.has_search = true;
                }
                Some("options") => words.for_each(|option| settings.set_option(option)),
                _ => {}
            }
        }
        settings.nameservers.truncate(MAX_NAMESERVERS);
        if settings.nameservers.is_empty() {
            settings.nameservers = vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)];
        }
        settings.search.retain(|domain| !domain.is_empty());
        settings
    }

    /// Whether the search list is derived from the host name, because the file has none.
    #[must_use]
    pub fn needs_hostname(&self) -> bool {
        !self.has_search
    }

    /// Uses the domain of the host name as the search list if the file has none.
    #[must_use]
    pub fn with_hostname(mut self, hostname: &str) -> Self {
        if self.needs_hostname()
            && let Some((_, own_domain)) = hostname.split_once('.')
        {
            self.search = vec![domain(own_domain)];
            self.search.retain(|domain| !domain.is_empty());
        }
        self
    }

    fn set_option(&mut self, option: &str) {
        let (name, value) = option.split_once(':').unwrap_or((option, ""));
        let number = || value.parse::<u32>().ok();
        match name {
            "ndots" => self.dots = number().map_or(self.dots, |dots| dots.min(MAX_DOTS)),
            "timeout" => {
                self.timeout_seconds = number().map_or(self.timeout_seconds, |seconds| {
                    seconds.clamp(1, MAX_TIMEOUT_SECONDS)
                });
            }
            "attempts" => {
                self.attempts =
                    number().map_or(self.attempts, |attempts| attempts.clamp(1, MAX_ATTEMPTS));
            }
            "rotate" => self.rotate = true,
            "use-vc" | "usevc" | "tcp" => self.tcp = true,
            _ => {}
        }
    }

    /// The absolute names to query in order, until one exists. Each ends with a dot.
    #[must_use]
    pub fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let absolute = format!("{name}.");
        let mut candidates: Vec<String> = self
            .search
            .iter()
            .map(|domain| match domain.as_str() {
                "." => absolute.clone(),
                domain => format!("{name}.{domain}."),
            })
            .collect();
        let dots = name.bytes().filter(|byte| *byte == b'.').count();
        if dots >= usize::try_from(self.dots).unwrap_or(usize::MAX) {
            candidates.insert(0, absolute);
        } else {
            candidates.push(absolute);
        }
        candidates
    }
}

fn nameserver(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(address, PORT));
    }
    // A link-local nameserver has a scope. Only a numeric scope can be parsed without asking the system.
    let (address, scope) = text.split_once('%')?;
    let scope = scope.parse().ok()?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into())
}

fn domain(text: &str) -> String {
    if text == "." {
        return text.to_owned();
    }
    text.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ResolvConf {
        ResolvConf::parse(text.as_bytes()).with_hostname("checkout-1.shop.internal")
    }

    #[test]
    fn kubernetes_resolv_conf() {
        let settings = parse(
            "nameserver 10.96.0.10\nsearch shop.svc.cluster.local svc.cluster.local. cluster.local\noptions ndots:5\n",
        );
        assert_eq!(settings.nameservers, ["10.96.0.10:53".parse().unwrap()]);
        assert_eq!(
            settings.candidates("inventory"),
            [
                "inventory.shop.svc.cluster.local.",
                "inventory.svc.cluster.local.",
                "inventory.cluster.local.",
                "inventory.",
            ]
        );
        assert_eq!(settings.candidates("example.com.")[..], ["example.com."]);
    }

    #[test]
    fn dots_decide_the_order() {
        let settings = parse("search one two\n");
        let check = |name: &str, expected: &[&str]| assert_eq!(settings.candidates(name), expected);
        check("a", &["a.one.", "a.two.", "a."]);
        check("a.b", &["a.b.", "a.b.one.", "a.b.two."]);
        assert_eq!(parse("search .\n").candidates("a"), ["a.", "a."]);
    }

    #[test]
    fn absent_settings_have_the_defaults_of_libc() {
        let settings = parse("");
        assert_eq!(settings.nameservers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(settings.search, ["shop.internal"]);
        assert_eq!(
            (settings.dots, settings.timeout_seconds, settings.attempts),
            (1, 5, 2)
        );
        assert!(parse("search\n").search.is_empty());
    }

    #[test]
    fn malformed_lines_and_limits() {
        let settings = ResolvConf::parse(
            b"# comment\n; comment\n\xff\xff\nnameserver\nnameserver nonsense\n  nameserver fe80::1%3\nnameserver ::1\n\
            nameserver 10.0.0.1\nnameserver 10.0.0.2\ndomain first.example\nsearch a b\n\
            options ndots:99 timeout:0 attempts:x rotate use-vc unknown:1\n",
        );
        assert_eq!(
            settings.nameservers,
            [
                "[fe80::1%3]:53".parse().unwrap(),
                "[::1]:53".parse().unwrap(),
                "10.0.0.1:53".parse().unwrap()
            ]
        );
        assert_eq!(settings.search, ["a", "b"]);
        assert_eq!(
            (settings.dots, settings.timeout_seconds, settings.attempts),
            (15, 1, 2)
        );
        assert!(settings.rotate && settings.tcp);
    }
}
