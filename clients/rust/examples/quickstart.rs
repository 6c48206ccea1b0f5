use std::time::Duration;

use queen_client::{Message, Queen};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    customer: String,
    total: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let orders = queen.queue("quickstart.orders");

    // Messages of a partition stay in order. Partitions are independent of each other.
    let order = Order { customer: "customer-7".to_owned(), total: 42 };
    let pushed = orders.partition(&order.customer).push(&order).await?;
    println!("stored as {}", pushed.message_id);

    // Each group reads every message at its own pace. A message is acknowledged on success and redelivered on failure.
    let summary = orders
        .group("billing")
        .consume()
        .batch(10)
        .idle_timeout(Duration::from_secs(1))
        .each(|message: Message<Order>, _| async move {
            println!("{} pays {}", message.data.customer, message.data.total);
            Ok::<_, std::io::Error>(())
        })
        .await?;
    println!("{} orders billed", summary.handled);
    Ok(())
}
