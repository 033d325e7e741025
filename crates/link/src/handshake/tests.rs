use proptest::prelude::*;

use super::*;
use crate::Abort;

fn parts(bytes: &[u8]) -> Result<(Preamble, &[u8]), Malformed> {
    let (start, body) = bytes.split_first_chunk().ok_or(Malformed::NotALink)?;
    Ok((Preamble::decode(start)?, body))
}

fn hello() -> Hello {
    Hello {
        id: LinkId([0xab; 16]),
        attempt: 3,
        fresh: false,
        position: Position {
            received: 1 << 40,
            limit: (1 << 40) + 5,
            replay_capacity: 4096,
        },
        window: Duration::from_secs(600),
        token: Token::new(*b"open sesame").unwrap(),
    }
}

#[test]
fn messages_are_decoded_as_they_were_encoded() {
    let bytes = hello().encode();
    let (preamble, body) = parts(&bytes).unwrap();
    assert_eq!(preamble.version, VERSION);
    assert_eq!(preamble.length, body.len());
    assert_eq!(Hello::decode(preamble, body), Ok(hello()));

    let welcome = Welcome {
        position: hello().position,
        window: Duration::from_millis(1),
    };
    let mut bytes = Vec::new();
    welcome.put(&mut bytes);
    let (preamble, body) = parts(&bytes).unwrap();
    assert_eq!(
        HandshakeResponse::decode(preamble, body),
        Ok(HandshakeResponse::Welcome(welcome))
    );

    let text = || "because".to_owned();
    for refusal in [
        Refusal::Version,
        Refusal::Token(text()),
        Refusal::StateLost,
        Refusal::WindowExpired(Duration::from_secs(60)),
        Refusal::Aborted(Abort {
            code: 65_535,
            text: text(),
        }),
        Refusal::Finished,
        Refusal::Superseded,
        Refusal::Other(text()),
    ] {
        let bytes = refusal.encode();
        let (preamble, body) = parts(&bytes).unwrap();
        let version = VERSION;
        assert_eq!(
            HandshakeResponse::decode(preamble, body),
            Ok(HandshakeResponse::Refuse { refusal, version })
        );
    }
}

#[test]
fn a_refusal_of_another_version_is_decoded_and_its_welcome_is_a_version_refusal() {
    let mut bytes = Refusal::Version.encode();
    bytes[5] = 9;
    let (preamble, body) = parts(&bytes).unwrap();
    let refused = Ok(HandshakeResponse::Refuse {
        refusal: Refusal::Version,
        version: 9,
    });
    assert_eq!(HandshakeResponse::decode(preamble, body), refused);

    let mut bytes = start(WELCOME, 3);
    bytes[5] = 9;
    bytes.extend_from_slice(b"new");
    let (preamble, body) = parts(&bytes).unwrap();
    assert_eq!(HandshakeResponse::decode(preamble, body), refused);
}

#[test]
fn the_wire_format_is_stable() {
    let shown: String = hello()
        .encode()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let expected = concat!(
        "534c4e4b",
        "0001",
        "01",
        "00",
        "0038",
        "abababababababababababababababab",
        "00000003",
        "00",
        "0000010000000000",
        "0000010000000005",
        "00001000",
        "000927c0",
        "6f70656e20736573616d65",
    );
    assert_eq!(shown, expected);
}

#[test]
fn secrets_are_not_printed() {
    let shown = format!("{:?}", hello());
    assert!(
        shown.contains("LinkId(abababab)") && shown.contains("Token(11 bytes)"),
        "{shown}"
    );
    assert!(Token::new(vec![0; MAX_TOKEN + 1]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        kind in 0_u8..5,
        body in prop::collection::vec(any::<u8>(), 0..600),
        noise in prop::option::of((0_usize..10, any::<u8>())),
    ) {
        let mut bytes = start(kind, body.len());
        bytes.extend_from_slice(&body);
        if let Some((place, byte)) = noise {
            bytes[place] = byte;
        }
        if let Ok((preamble, body)) = parts(&bytes) {
            prop_assert!(preamble.length <= HELLO_FIXED + MAX_TOKEN);
            let _ = Hello::decode(preamble, body);
            let _ = HandshakeResponse::decode(preamble, body);
        }
    }
}
