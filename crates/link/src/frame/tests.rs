use proptest::prelude::*;

use super::*;

fn encode(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    match frame {
        Frame::Data { offset, bytes } => {
            put_data_header(&mut out, *offset, bytes.len());
            out.extend_from_slice(bytes);
        }
        Frame::Ack { received, limit } => put_ack(&mut out, *received, *limit),
        Frame::Ping { stamp } => put_ping(&mut out, *stamp),
        Frame::Pong { stamp } => put_pong(&mut out, *stamp),
        Frame::Fin { offset } => put_fin(&mut out, *offset),
        Frame::Abort { code, text } => put_abort(&mut out, *code, text),
        Frame::Closed => put_closed(&mut out),
    }
    out
}

/// Decodes bytes that are received in pieces of this size. Parts of one DATA frame are joined.
fn decode(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, Malformed> {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.next(&mut buffer)? {
            join(&mut frames, frame);
        }
    }
    Ok(frames)
}

fn join(frames: &mut Vec<Frame>, frame: Frame) {
    if let Some(Frame::Data { offset, bytes }) = frames.last_mut()
        && let Frame::Data {
            offset: next,
            bytes: more,
        } = &frame
        && *offset + bytes.len() as u64 == *next
    {
        *bytes = [&bytes[..], more].concat().into();
        return;
    }
    frames.push(frame);
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let bytes = prop::collection::vec(any::<u8>(), 1..3000);
    prop_oneof![
        (0..u64::MAX / 2, bytes).prop_map(|(offset, bytes)| Frame::Data {
            offset,
            bytes: bytes.into()
        }),
        any::<(u64, u64)>().prop_map(|(received, limit)| Frame::Ack { received, limit }),
        any::<u64>().prop_map(|stamp| Frame::Ping { stamp }),
        any::<u64>().prop_map(|stamp| Frame::Pong { stamp }),
        any::<u64>().prop_map(|offset| Frame::Fin { offset }),
        (any::<u16>(), "[a-zäöü€ ]{0,100}").prop_map(|(code, text)| Frame::Abort { code, text }),
        Just(Frame::Closed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_are_decoded_as_they_were_encoded_in_pieces_of_any_size(
        frames in prop::collection::vec(any_frame(), 0..20),
        piece in 1_usize..4000,
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(encode).collect();
        let mut expected = Vec::new();
        for frame in frames {
            join(&mut expected, frame);
        }
        prop_assert_eq!(decode(&bytes, piece).unwrap(), expected);
    }

    /// The input starts like frames, so that it covers more than the first byte.
    #[test]
    fn damaged_frames_are_frames_or_errors(
        frames in prop::collection::vec(any_frame(), 1..10),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        piece in 1_usize..100,
    ) {
        let mut bytes: Vec<u8> = frames.iter().flat_map(encode).collect();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let whole = decode(&bytes, usize::MAX);
        // The result does not depend on the size of the pieces.
        prop_assert_eq!(decode(&bytes, piece), whole);
    }

    #[test]
    fn any_bytes_are_frames_or_errors(bytes in prop::collection::vec(any::<u8>(), 0..500), piece in 1_usize..100) {
        prop_assert_eq!(decode(&bytes, piece), decode(&bytes, usize::MAX));
    }
}

#[test]
fn every_kind_and_length_is_checked() {
    for kind in 0..=255_u8 {
        for length in [
            0,
            1,
            2,
            7,
            8,
            9,
            15,
            16,
            17,
            514,
            515,
            262_152,
            262_153,
            0xff_ffff_u32,
        ] {
            let [_, high, middle, low] = length.to_be_bytes();
            let allowed = match kind {
                DATA => (9..=262_152).contains(&length),
                ACK => length == 16,
                PING | PONG | FIN => length == 8,
                ABORT => (2..=514).contains(&length),
                CLOSED => length == 0,
                _ => false,
            };
            let result = decode(&[kind, high, middle, low], usize::MAX);
            assert_eq!(result.is_ok(), allowed, "kind {kind}, {length} bytes");
        }
    }
}

#[test]
fn the_wire_format_is_stable() {
    let check = |frame: Frame, hex: &str| {
        let bytes = encode(&frame);
        let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, hex.replace(' ', ""), "{frame:?}");
    };
    let bytes = Bytes::from_static(b"hi");
    check(
        Frame::Data { offset: 258, bytes },
        "01 00000a 0000000000000102 6869",
    );
    check(
        Frame::Ack {
            received: 1,
            limit: 2,
        },
        "02 000010 0000000000000001 0000000000000002",
    );
    check(Frame::Ping { stamp: 9 }, "03 000008 0000000000000009");
    check(Frame::Pong { stamp: 9 }, "04 000008 0000000000000009");
    check(Frame::Fin { offset: 3 }, "05 000008 0000000000000003");
    check(
        Frame::Abort {
            code: 5,
            text: "no".to_owned(),
        },
        "06 000004 0005 6e6f",
    );
    check(Frame::Closed, "07 000000");
}

#[test]
fn texts_are_truncated_between_characters() {
    let long = "€".repeat(1000);
    let frame = encode(&Frame::Abort {
        code: 0,
        text: long,
    });
    let frames = decode(&frame, usize::MAX).unwrap();
    let text = "€".repeat(170);
    assert_eq!(frames, [Frame::Abort { code: 0, text }]);
}
