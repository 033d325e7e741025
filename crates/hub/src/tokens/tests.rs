use proptest::prelude::*;

use super::*;

const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn token(number: u8) -> TokenHash {
    TokenHash::of(&encode(&[number; TOKEN_BYTES])).unwrap()
}

/// What an agent gets, as a text for tables.
fn claim(tokens: &mut Tokens, text: &str, now: Timestamp) -> String {
    let (cluster, key) = text.split_once('/').unwrap();
    let token = token(1);
    let claim = Claim {
        token: &token,
        cluster,
        key,
    };
    match tokens.redeem(claim, now) {
        Ok(Redemption::First) => {
            tokens.complete(claim, &format!("certificate of {key}"));
            format!("certificate of {key}")
        }
        Ok(Redemption::Again(certificate)) => certificate,
        Err(rejection) => format!("{rejection:?}"),
    }
}

/// Claims of the form `cluster/key` at a second after the token for `a` was created, each with its outcome.
fn check(claims: &[(i64, &str, &str)]) {
    let mut tokens = Tokens::default();
    tokens.add(token(1), "a", at(0) + LIFETIME, at(0)).unwrap();
    for (seconds, text, expected) in claims {
        let outcome = claim(&mut tokens, text, at(*seconds));
        assert!(outcome.starts_with(expected), "{text}: {outcome}");
        // A restart between any two claims changes nothing.
        let stored = serde_json::to_string(&tokens).unwrap();
        let restored: Tokens = serde_json::from_str(&stored).unwrap();
        assert_eq!(restored, tokens);
        tokens = restored;
    }
}

#[test]
fn a_token_yields_one_certificate_and_the_same_one_again() {
    let first = "certificate of k";
    check(&[
        (0, "a/k", first),
        (1, "a/k", first),
        (899, "a/k", first),
        (900, "a/k", "Expired"),
    ]);
    check(&[(900, "a/k", "Expired"), (901, "b/k", "Expired")]);
}

#[test]
fn a_wrong_cluster_or_another_key_burns_the_token() {
    let first = "certificate of k";
    check(&[
        (0, "b/k", "ClusterMismatch"),
        (1, "a/k", "Burned"),
        (2, "b/k", "Burned"),
    ]);
    check(&[
        (0, "a/k", first),
        (1, "a/other", "AnotherKey"),
        (2, "a/k", "Burned"),
        (3, "a/other", "Burned"),
    ]);
    check(&[
        (0, "a/k", first),
        (1, "b/k", "ClusterMismatch"),
        (2, "a/k", "Burned"),
    ]);
}

#[test]
fn only_texts_of_the_right_form_are_tokens() {
    let text = encode(&[7; TOKEN_BYTES]);
    assert_eq!(text.len(), 43);
    assert!(TokenHash::of(&text).is_some());
    for wrong in [
        "",
        "abc",
        &text[1..],
        &format!("{text}A"),
        &text.replace('c', "+"),
    ] {
        assert!(TokenHash::of(wrong).is_none() || wrong == text, "{wrong}");
    }
}

#[test]
fn the_stored_form_has_no_token() {
    let text = encode(&[7; TOKEN_BYTES]);
    let mut tokens = Tokens::default();
    let hash = TokenHash::of(&text).unwrap();
    tokens.add(hash, "a", at(900), at(0)).unwrap();
    assert!(!serde_json::to_string(&tokens).unwrap().contains(&text));
}

#[test]
fn tokens_of_a_revoked_cluster_are_burned_and_expired_ones_removed() {
    let mut tokens = Tokens::default();
    tokens.add(token(1), "a", at(900), at(0)).unwrap();
    tokens.add(token(2), "b", at(900), at(0)).unwrap();
    tokens.burn("b");
    assert_eq!(claim(&mut tokens, "a/k", at(1)), "certificate of k");
    tokens.burn("a");
    assert_eq!(claim(&mut tokens, "a/k", at(2)), "Burned");
    tokens.add(token(3), "c", at(9000), at(900 + 3600)).unwrap();
    assert!(!tokens.contains(&token(1)));
    assert!(tokens.contains(&token(3)));
}

#[test]
fn the_number_of_tokens_is_limited() {
    let mut tokens = Tokens::default();
    let hash = |number: usize| TokenHash(number.to_string());
    for number in 0..MAX_TOKENS {
        tokens.add(hash(number), "a", at(900), at(0)).unwrap();
    }
    let more = hash(MAX_TOKENS);
    assert_eq!(
        tokens.add(more.clone(), "a", at(901), at(1)),
        Err(TooManyTokens)
    );
    tokens.add(more, "a", at(1800), at(900)).unwrap();
}

/// One step of an agent, an administrator or time.
#[derive(Clone, Debug)]
enum Step {
    Add { token: u8, cluster: u8 },
    Redeem { token: u8, cluster: u8, key: u8 },
    Revoke { cluster: u8 },
    Wait { seconds: i64 },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..4_u8, 0..2_u8).prop_map(|(token, cluster)| Step::Add { token, cluster }),
        8 => (0..4_u8, 0..2_u8, 0..2_u8)
            .prop_map(|(token, cluster, key)| Step::Redeem { token, cluster, key }),
        1 => (0..2_u8).prop_map(|cluster| Step::Revoke { cluster }),
        2 => (0..600_i64).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::Restart),
    ]
}

/// What is known of a token from the outside.
struct Model {
    cluster: u8,
    expires: i64,
    key: Option<u8>,
    burned: bool,
}

impl Model {
    fn redeem(&mut self, cluster: u8, key: u8, now: i64) -> bool {
        if now >= self.expires || self.burned {
            return false;
        }
        let is_good = cluster == self.cluster && self.key.is_none_or(|first| first == key);
        self.burned = !is_good;
        if is_good {
            self.key = Some(key);
        }
        is_good
    }
}

proptest! {
    /// A token never yields certificates for two keys or for another cluster, whatever happens.
    #[test]
    fn tokens_behave_like_their_model(steps in proptest::collection::vec(step(), 0..60)) {
        let mut tokens = Tokens::default();
        let mut models: BTreeMap<u8, Model> = BTreeMap::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Add { token: number, cluster } if !models.contains_key(&number) => {
                    let expires = now + LIFETIME.as_secs();
                    let name = cluster.to_string();
                    tokens.add(token(number), &name, at(expires), at(now)).unwrap();
                    models.insert(number, Model { cluster, expires, key: None, burned: false });
                }
                Step::Add { .. } => {}
                Step::Redeem { token: number, cluster, key } => {
                    let (hash, name, key_name) = (token(number), cluster.to_string(), key.to_string());
                    let claim = Claim { token: &hash, cluster: &name, key: &key_name };
                    let outcome = tokens.redeem(claim, at(now));
                    if outcome == Ok(Redemption::First) {
                        tokens.complete(claim, &key_name);
                    }
                    if let Ok(Redemption::Again(certificate)) = &outcome {
                        prop_assert_eq!(certificate, &key_name);
                    }
                    let model = models.get_mut(&number);
                    let expected = model.is_some_and(|model| model.redeem(cluster, key, now));
                    prop_assert_eq!(outcome.is_ok(), expected);
                }
                Step::Revoke { cluster } => {
                    tokens.burn(&cluster.to_string());
                    for model in models.values_mut().filter(|model| model.cluster == cluster) {
                        model.burned = true;
                    }
                }
                Step::Wait { seconds } => now += seconds,
                Step::Restart => {
                    let stored = serde_json::to_string(&tokens).unwrap();
                    tokens = serde_json::from_str(&stored).unwrap();
                }
            }
        }
    }
}
