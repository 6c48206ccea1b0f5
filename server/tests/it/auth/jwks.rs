//! Keys of an issuer: fetched, rotated, and kept while it is unavailable.

use futures_util::future::join_all;

use super::issuer::{KeySet, Signer};
use super::{Holder, claims};
use crate::support::{Server, eventually};

async fn server(keys: &KeySet, more: &[&str]) -> Server {
    let flags = [&["--jwt-enabled", "--jwt-algorithm", "auto", "--jwt-jwks-url", &keys.url], more].concat();
    Server::start_with(&flags).await
}

async fn status(server: &Server, signer: &Signer) -> u16 {
    let token = signer.sign(&claims("read-only"));
    Holder::new(server, &token).get("/api/v1/resources/overview").await.status
}

#[tokio::test]
async fn a_new_key_counts_at_once_and_an_old_one_while_the_issuer_is_away() {
    let (old, new, rsa) = (Signer::ed(Some("old")), Signer::ed(Some("new")), Signer::rsa(Some("rsa")));
    let keys = KeySet::start(Some(vec![old.jwk.clone()])).await;
    let server = server(&keys, &[]).await;
    assert_eq!(status(&server, &old).await, 200);
    keys.set(Some(vec![old.jwk.clone(), new.jwk.clone(), rsa.jwk.clone()]));
    assert_eq!(status(&server, &new).await, 200);
    assert_eq!(status(&server, &rsa).await, 200);
    assert_eq!(status(&server, &old).await, 200);

    keys.set(None);
    assert_eq!(status(&server, &old).await, 200);
    // A different key with a known id, then unknown ids.
    assert_eq!(status(&server, &Signer::ed(Some("new"))).await, 401);
    let asked = keys.asked();
    let strangers: Vec<Signer> = (0..20).map(|n| Signer::ed(Some(&format!("made up {n}")))).collect();
    let statuses = join_all(strangers.iter().map(|stranger| status(&server, stranger))).await;
    assert!(statuses.iter().all(|status| *status == 401), "{statuses:?}");
    // One fetch for all, one for those that came too late for it, and the broker's own retries.
    assert!(keys.asked() <= asked + 5, "strangers cannot make it ask again and again");
    let nobody = Signer::ed(None);
    assert_eq!(status(&server, &nobody).await, 401);
}

#[tokio::test]
async fn an_unknown_key_id_does_not_delay_a_new_key() {
    let (old, new) = (Signer::ed(Some("old")), Signer::ed(Some("new")));
    let keys = KeySet::start(Some(vec![old.jwk.clone()])).await;
    let server = server(&keys, &[]).await;
    assert_eq!(status(&server, &old).await, 200);
    let (asked, stranger) = (keys.asked(), Signer::ed(Some("made up")));
    tokio::select! {
        status = status(&server, &stranger) => assert_eq!(status, 401),
        () = eventually("it is asked", async || (keys.asked() > asked).then_some(())) => {}
    }
    keys.set(Some(vec![new.jwk.clone()]));
    assert_eq!(status(&server, &new).await, 200);
}

#[tokio::test]
async fn a_key_that_was_taken_back_ends_with_the_next_look() {
    let (old, new) = (Signer::ed(Some("old")), Signer::ed(Some("new")));
    let keys = KeySet::start(Some(vec![old.jwk.clone()])).await;
    let server = server(&keys, &["--jwt-jwks-refresh", "1s"]).await;
    assert_eq!(status(&server, &old).await, 200);
    keys.set(Some(vec![new.jwk.clone()]));
    // A new token each time, because an accepted token is remembered for a minute.
    let mut n = 0;
    eventually("it ends", async || {
        n += 1;
        let token = old.sign(&super::with(claims("read-only"), "jti", n.into()));
        let reply = Holder::new(&server, &token).get("/api/v1/resources/overview").await;
        (reply.status == 401).then(|| assert_eq!(reply.json()["error"], "unknown key id"))
    })
    .await;
}

#[tokio::test]
async fn without_keys_callers_get_retry_after_and_a_single_key_needs_no_id() {
    let signer = Signer::ed(Some("x"));
    let keys = KeySet::start(None).await;
    let server = server(&keys, &["--jwt-jwks-refresh", "1s"]).await;
    let nameless = Signer::ed(None);
    let reply =
        Holder::new(&server, &signer.sign(&claims("read-only"))).get("/api/v1/resources/overview").await;
    assert!(reply.is_error(503, "unavailable"), "{} {}", reply.status, reply.text);
    // Published consumers stop on any other text.
    assert!(reply.text.contains("connection timeout"), "{}", reply.text);
    assert_eq!(status(&server, &nameless).await, 503);
    keys.set(Some(vec![nameless.jwk.clone()]));
    eventually("it comes back", async || (status(&server, &nameless).await == 200).then_some(())).await;
    // The token names a key, and there is no key with this id.
    assert_eq!(status(&server, &signer).await, 401);
}
