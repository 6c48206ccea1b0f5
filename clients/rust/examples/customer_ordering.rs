//! Ordering per customer: one partition per customer. A customer's events are processed in order, however many workers there
//! are, and a customer whose events fail does not hold up others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_client::{Message, Queen};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Event {
    customer: String,
    step: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let events = queen.queue("example.customer-ordering");

    // A buffer combines many small pushes into few requests, and keeps each partition's order.
    let buffer = events.buffer().linger(Duration::from_millis(5)).start()?;
    for step in 1..=10 {
        for customer in ["ada", "grace", "edsger"] {
            let event = Event { customer: customer.to_owned(), step };
            buffer.partition(customer).push(&event).await?;
        }
    }
    buffer.close().await?;

    let last: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let seen = last.clone();
    let summary = events
        .group("shipping")
        .consume()
        .concurrency(3)
        .batch(4)
        .idle_timeout(Duration::from_secs(1))
        .each(move |message: Message<Event>, _| {
            let seen = seen.clone();
            async move {
                let event = message.data;
                let mut seen = seen.lock().map_err(|error| error.to_string())?;
                let last = seen.entry(event.customer.clone()).or_default();
                // A message may be delivered again, so a repeated step is not an error.
                if event.step > *last + 1 {
                    return Err(format!("{}: {} after {last}", event.customer, event.step));
                }
                *last = event.step.max(*last);
                Ok(())
            }
        })
        .await?;
    println!("{} events in order, {} out of order", summary.handled, summary.failed);
    println!("{:?}", last.lock().map_err(|error| error.to_string())?);
    Ok(())
}
