//! A pipeline: consume an order, and acknowledge it atomically with the push of the resulting invoice.

use std::time::Duration;

use queen_client::{Error, ErrorKind, Message, Queen};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    total: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Invoice {
    customer: String,
    amount: u32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("QUEEN_URL").unwrap_or_else(|_| "http://localhost:6632".to_owned());
    let queen = Queen::connect(url)?;
    let orders = queen.queue("example.pipeline-orders");
    for (customer, total) in [("ada", 10), ("grace", 20), ("ada", 30)] {
        orders.partition(customer).push(&Order { customer: customer.to_owned(), total }).await?;
    }

    let pipeline = queen.clone();
    let summary = orders
        .group("invoicing")
        .consume()
        // The transaction acknowledges.
        .auto_ack(false)
        .idle_timeout(Duration::from_secs(1))
        .each(move |message: Message<Order>, _| {
            let queen = pipeline.clone();
            async move {
                let order = &message.data;
                let invoice = Invoice { customer: order.customer.clone(), amount: order.total };
                let transaction = queen.transaction().ack(&message);
                match transaction.push("example.pipeline-invoices", &order.customer, &invoice).commit().await
                {
                    Ok(_) => Ok(()),
                    // If it was committed, nothing is delivered again; if not, the order is.
                    Err(error) if error.kind() == ErrorKind::OutcomeUnknown => Ok(()),
                    Err(error) => Err(error),
                }
            }
        })
        .await?;
    println!("{} orders became invoices", summary.handled);

    let invoices = queen.queue("example.pipeline-invoices");
    let summary = invoices
        .group("mails")
        .consume()
        .batch(10)
        .idle_timeout(Duration::from_secs(1))
        .each(|message: Message<Invoice>, _| async move {
            println!("{:?}", message.data);
            Ok::<_, Error>(())
        })
        .await?;
    println!("{} invoices sent", summary.handled);
    Ok(())
}
