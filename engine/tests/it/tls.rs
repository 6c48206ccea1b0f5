//! TLS to PostgreSQL: trusted certificates, host names, and that a weaker mode than requested is never used.

use std::path::{Path, PathBuf};

use queen_engine::{Config, Engine, Roots, StartError, Tls, TlsMode};
use queen_testkit::{Authority, Cluster, cluster_with};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::{config, push};

/// A server that listens on its own address. All servers have the same port, but every
/// address in 127/8 is this machine.
struct Encrypted {
    cluster: Cluster,
    address: String,
    authority: Authority,
    dir: TempDir,
}

impl Encrypted {
    async fn start() -> Self {
        let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
        let address = format!("127.{}.{b}.{}", a.max(1), c.clamp(1, 254));
        let cluster = cluster_with(&[("listen_addresses", &address), ("fsync", "off")]).await;
        let authority = Authority::new();
        let server = authority.issue(&["db.test"]);
        cluster.offer_tls(&server.certificate, &server.key).await;
        Self { cluster, address, authority, dir: TempDir::new().unwrap() }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn trusted(&self) -> PathBuf {
        self.file("ca.pem", &self.authority.pem())
    }

    fn config(&self, host: &str, mode: TlsMode, roots: &Path) -> Config {
        let database = format!("host={host} hostaddr={} user=queen dbname=queen", self.address);
        let tls = Tls { roots: Roots::File(roots.to_owned()), ..Tls::new(mode) };
        Config { tls, ..config(&database) }
    }
}

async fn refused(config: Config) -> String {
    match Engine::start(config).await {
        Err(error @ StartError::Unreachable { .. }) => error.to_string(),
        Err(error) => panic!("another reason: {error}"),
        Ok(_) => panic!("it connected"),
    }
}

#[tokio::test]
async fn each_mode_checks_what_it_promises_and_no_less() {
    let server = Encrypted::start().await;
    let (trusted, unknown) = (server.trusted(), server.file("other.pem", &Authority::new().pem()));
    let broker = Engine::start(server.config("db.test", TlsMode::VerifyFull, &trusted)).await.unwrap();
    push(&broker, "q", "p", 0..1).await;
    let sql = server.cluster.client().await;
    let text = "select count(*) filter (where s.ssl), count(*) from pg_stat_ssl s join pg_stat_activity a using (pid)
                where a.application_name = 'queen'";
    let row = sql.query_one(text, &[]).await.unwrap();
    let (encrypted, all): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > 2 && encrypted == all, "{encrypted} of {all} connections are encrypted");
    broker.stop().await;

    let name = refused(server.config("other.test", TlsMode::VerifyFull, &trusted)).await;
    assert!(name.contains("other.test"), "{name}");
    let issuer = refused(server.config("db.test", TlsMode::VerifyFull, &unknown)).await;
    assert!(issuer.contains("UnknownIssuer"), "{issuer}");
    let issuer = refused(server.config("other.test", TlsMode::VerifyCa, &unknown)).await;
    assert!(issuer.contains("UnknownIssuer"), "{issuer}");
    for (host, mode, roots) in [
        ("other.test", TlsMode::VerifyCa, &trusted),
        ("other.test", TlsMode::Unverified, &unknown),
        ("other.test", TlsMode::Prefer, &unknown),
    ] {
        let broker = Engine::start(server.config(host, mode, roots)).await;
        broker.unwrap_or_else(|error| panic!("{mode:?}: {error}")).stop().await;
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_unless_it_may_lack_it() {
    let server = Encrypted::start().await;
    let trusted = server.trusted();
    let sql = server.cluster.client().await;
    for statement in ["alter system set ssl = off", "select pg_reload_conf()"] {
        sql.batch_execute(statement).await.unwrap();
    }
    let prefer = server.config("db.test", TlsMode::Prefer, &trusted);
    crate::support::eventually("it has no TLS any more", async || {
        let broker = Engine::start(server.config("db.test", TlsMode::Unverified, &trusted)).await;
        match broker {
            Err(error) => Some(error),
            Ok(broker) => {
                broker.stop().await;
                None
            }
        }
    })
    .await;
    for mode in [TlsMode::Unverified, TlsMode::VerifyCa, TlsMode::VerifyFull] {
        let said = refused(server.config("db.test", mode, &trusted)).await;
        assert!(said.contains("does not support TLS"), "{said}");
    }
    Engine::start(prefer).await.unwrap().stop().await;
}

#[tokio::test]
async fn the_writable_one_of_several_servers_is_found_through_tls() {
    let (standby, primary) = (Encrypted::start().await, Encrypted::start().await);
    let sql = standby.cluster.client().await;
    sql.batch_execute("alter database queen set default_transaction_read_only = on").await.unwrap();
    let both = format!("{}{}", standby.authority.pem(), primary.authority.pem());
    let roots = primary.file("both.pem", &both);
    let tls = Tls { roots: Roots::File(roots), ..Tls::new(TlsMode::VerifyFull) };
    let database = format!(
        "host=db.test,db.test hostaddr={},{} user=queen dbname=queen target_session_attrs=read-write",
        standby.address, primary.address
    );
    let broker = Engine::start(Config { tls, ..config(&database) }).await.unwrap();
    push(&broker, "q", "p", 0..1).await;
    let sql = primary.cluster.client().await;
    assert_eq!(crate::support::number(&sql, "select count(*) from queen.messages").await, 1);
}

#[tokio::test]
async fn a_client_shows_its_certificate_to_a_server_that_wants_one() {
    let server = Encrypted::start().await;
    let sql = server.cluster.client().await;
    let row = sql.query_one("show data_directory", &[]).await.unwrap();
    let dir = PathBuf::from(row.get::<_, String>(0));
    // Written in place, so that the file still belongs to the server's user.
    std::fs::write(
        dir.join("pg_hba.conf"),
        "local all all trust\nhostssl all all all trust clientcert=verify-ca\n",
    )
    .unwrap();
    std::fs::write(dir.join("root.crt"), server.authority.pem()).unwrap();
    for statement in ["alter system set ssl_ca_file = 'root.crt'", "select pg_reload_conf()"] {
        sql.batch_execute(statement).await.unwrap();
    }
    let trusted = server.trusted();
    let without = || server.config("db.test", TlsMode::VerifyFull, &trusted);
    crate::support::eventually("it wants a certificate", async || match Engine::start(without()).await {
        Err(_) => Some(()),
        Ok(broker) => {
            broker.stop().await;
            None
        }
    })
    .await;
    let mine = server.authority.issue(&["queen"]);
    let (certificate, key) = (server.file("me.crt", &mine.certificate), server.file("me.key", &mine.key));
    let mut with = without();
    with.tls.client = Some((certificate.clone(), key));
    Engine::start(with).await.unwrap().stop().await;
    let mut wrong = without();
    wrong.tls.client = Some((certificate, server.file("other.key", &server.authority.issue(&["x"]).key)));
    let Err(StartError::Tls(said)) = Engine::start(wrong).await else { panic!("a key that does not fit") };
    assert!(said.contains("me.crt"), "{said}");
}

#[tokio::test]
async fn an_authority_that_cannot_be_read_refuses_the_start() {
    let dir = TempDir::new().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    for path in [dir.path().join("missing.pem"), empty] {
        let tls = Tls { roots: Roots::File(path.clone()), ..Tls::new(TlsMode::VerifyFull) };
        let Err(error) = Engine::start(Config { tls, ..config("host=127.0.0.1 user=x") }).await else {
            panic!("it started")
        };
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}
