//! The network between the broken engine and its database, as planned.

use std::time::Duration;

use queen_testkit::Proxy;
use tokio::time::sleep;

use crate::plan::Fault;
use crate::world::World;

/// Runs until it is dropped; call `heal` then.
pub async fn storm(world: &World, faults: impl Iterator<Item = (Duration, Fault)>) {
    let proxy = &world.proxy;
    for (pause, fault) in faults {
        sleep(pause).await;
        match fault {
            Fault::Cut => proxy.cut(),
            Fault::BlackHole { lasts, then_cut } => {
                proxy.black_hole(true);
                sleep(lasts).await;
                if then_cut {
                    proxy.cut();
                }
                proxy.black_hole(false);
            }
            Fault::Delay { lasts, each } => {
                proxy.delay(each);
                sleep(lasts).await;
                proxy.delay(Duration::ZERO);
            }
            Fault::Refuse { lasts } => {
                proxy.refuse(true);
                proxy.cut();
                sleep(lasts).await;
                proxy.refuse(false);
            }
            Fault::CutBeforeReply(pattern) => proxy.cut_before_reply(pattern),
        }
        world.count("faults");
    }
}

pub fn heal(proxy: &Proxy) {
    proxy.black_hole(false);
    proxy.delay(Duration::ZERO);
    proxy.refuse(false);
    // The only way to disarm it: wait for bytes that never occur.
    proxy.cut_before_reply(Some(b"\xff disarmed \xff"));
}
