use splitter::{Filter, Mode, Notice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::stage::{Manner, Stage, bodies};

const GET: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
const BLUE: &str = "POST /2 HTTP/1.1\r\nTeam: blue\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_copy_has_everything_and_its_answers_go_nowhere() {
    let stage = Stage::new(Manner::Answers);
    let (alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Mirror, None);
    let both = GET.to_owned() + BLUE;
    let answers = stage.ask(&both).await;
    assert_eq!(
        bodies(&answers),
        ["application GET /1", "application POST /2 ok"]
    );
    assert_eq!(stage.application.got(), both);
    alice.wait_until_got(&both).await;
}

#[tokio::test]
async fn a_copy_with_a_filter_has_what_it_wants() {
    let stage = Stage::new(Manner::Answers);
    let blue = Filter::header("^team: blue$").unwrap();
    let (alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Mirror, Some(blue));
    let answers = stage.ask(&[GET, BLUE, GET, BLUE].concat()).await;
    assert_eq!(bodies(&answers).len(), 4);
    alice.wait_until_got(&[BLUE, BLUE].concat()).await;
}

#[tokio::test]
async fn copies_are_made_beside_sessions_that_take_requests() {
    let stage = Stage::new(Manner::Answers);
    let (copy, _copies) = stage.claim("copy", Manner::Silent, Mode::Mirror, None);
    let blue = Filter::header("^team: blue$").unwrap();
    let (_alice, _alices) = stage.claim("alice", Manner::Answers, Mode::Steal, Some(blue));
    let both = GET.to_owned() + BLUE;
    let answers = stage.ask(&both).await;
    assert_eq!(bodies(&answers), ["application GET /1", "alice POST /2 ok"]);
    copy.wait_until_got(&both).await;
}

#[tokio::test]
async fn a_copy_that_is_dead_or_slow_holds_nobody_up() {
    for manner in [Manner::Stuck, Manner::Refuses, Manner::Closes] {
        let stage = Stage::with(Manner::SpeaksFirst, |settings| {
            settings.copy_limit = 256 * 1024;
        });
        let (_alice, _alices) = stage.claim("alice", manner, Mode::Mirror, None);
        let client = stage.connect();
        let (mut read, mut write) = tokio::io::split(client);
        const LENGTH: usize = 8 * 1024 * 1024;
        let writing = tokio::spawn(async move {
            write.write_all(&vec![b'x'; LENGTH]).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await.unwrap();
        writing.await.unwrap();
        assert_eq!(back.len(), LENGTH + "220 application\r\n".len());
        if manner == Manner::Stuck {
            let holder = "alice".to_owned();
            while stage.notices().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            assert_eq!(stage.notices(), [Notice::CopyDropped { holder }]);
        }
    }
}
