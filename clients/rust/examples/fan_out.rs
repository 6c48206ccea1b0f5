//! Fan-out: every group reads every message at its own pace, and a group that joins later chooses where to start.

use std::time::Duration;

use queen_client::{Error, Message, Queen, Subscription};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Signup {
    email: String,
}

async fn read(queen: &Queen, group: &'static str, start: Subscription) -> Result<u64, Error> {
    let summary = queen
        .queue("example.fan-out")
        .group(group)
        .consume()
        .batch(10)
        .subscription(start)
        .idle_timeout(Duration::from_secs(1))
        .batches(move |messages: Vec<Message<Signup>>, _| async move {
            for message in messages {
                println!("{group}: {}", message.data.email);
            }
            Ok::<_, Error>(())
        })
        .await?;
    Ok(summary.handled)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let signups = ["ada@example.com", "grace@example.com", "edsger@example.com"];
    queen.queue("example.fan-out").push_all(&signups.map(|email| Signup { email: email.to_owned() })).await?;

    // Both read all messages, concurrently.
    let (mails, statistics) = tokio::try_join!(
        read(&queen, "mails", Subscription::All),
        read(&queen, "statistics", Subscription::All)
    )?;
    // This group only wants new messages.
    let late = read(&queen, "late", Subscription::New).await?;
    println!("mails {mails}, statistics {statistics}, late {late}");
    Ok(())
}
