//! A seeded workload on two engines and one PostgreSQL, one engine behind a network that breaks, against a shadow queue
//! that checks every guarantee. Workload and faults follow from the seed, but timing does not, so a seed that fails may
//! have to run more than once.
//!
//! `QUEEN_MODEL_SEED` runs that seed alone, `QUEEN_MODEL_STEPS` sets the steps of each worker.

mod finale;
mod network;
mod plan;
mod settle;
mod shadow;
mod words;
mod worker;
mod world;

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use worker::Worker;
use world::World;

const WORKERS: u64 = 6;
/// Three to five seconds of work on two cores.
const STEPS: usize = 70;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guarantees_hold_in_the_first_fixed_run() {
    fixed(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guarantees_hold_in_the_second_fixed_run() {
    fixed(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guarantees_hold_in_the_third_fixed_run() {
    fixed(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guarantees_hold_in_a_run_of_your_choice() {
    // CI must not depend on luck; `QUEEN_MODEL_SEED=$RANDOM` searches for new failures.
    run(number("QUEEN_MODEL_SEED").unwrap_or(4)).await;
}

/// Skipped when a single seed is requested.
async fn fixed(seed: u64) {
    if number("QUEEN_MODEL_SEED").is_none() {
        run(seed).await;
    }
}

async fn run(seed: u64) {
    let steps = number("QUEEN_MODEL_STEPS").map_or(STEPS, |steps| steps as usize);
    println!("QUEEN_MODEL_SEED={seed} QUEEN_MODEL_STEPS={steps}");
    let began = Instant::now();
    let world = Arc::new(World::start(seed).await);
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let mut worker = Worker::new(world.clone()).await;
        workers.spawn(async move { worker.run(plan::steps(seed, number, steps)).await });
    }
    let started = began.elapsed();
    tokio::select! {
        () = network::storm(&world, plan::faults(seed)) => {}
        () = all(&mut workers) => {}
    }
    network::heal(&world.proxy);
    let worked = began.elapsed();
    finale::finale(&world, Worker::new(world.clone()).await).await;
    let withheld = world.proxy.replies_withheld();
    println!("{:?}, {withheld} replies withheld", world.tally());
    let healthy: Vec<_> = world
        .tally()
        .into_iter()
        .filter(|(what, _)| what.starts_with("Healthy") && what.ends_with("lost"))
        .collect();
    assert!(healthy.is_empty(), "QUEEN_MODEL_SEED={seed}: the healthy engine failed: {healthy:?}");
    world.healthy.stop().await;
    world.broken.stop().await;
    println!("start {started:?}, work {:?}, whole {:?}", worked - started, began.elapsed());
}

/// A worker that panics fails the run.
async fn all(workers: &mut JoinSet<()>) {
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var_os(name)?;
    Some(text.to_str().and_then(|text| text.parse().ok()).expect("a number"))
}
