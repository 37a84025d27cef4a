//! `shop deploy`: looks first, so doing it again converges, and says so.

use clap::Args;
use onceward_clap::{Applied, Class, Ensured, Fault, Mutating, Op, Plan, ensure};
use serde::Serialize;

use crate::shop::{Service, Shop};

/// Bring a service to a version
#[derive(Args, Serialize)]
pub(crate) struct Deploy {
    /// Which service
    #[arg(long, default_value = "web")]
    service: String,
    /// Which version
    #[arg(long)]
    version: String,
}

impl Mutating for Deploy {
    const NAME: &'static str = "deploy";
    const EXAMPLE: &'static [&'static str] = &["--version", "1.2.3"];
    const CLASS: Class = Class::Idempotent;
    type World = Shop;
    type Data = Service;

    fn plan(&self, shop: &Shop) -> Result<Plan, Fault> {
        let running = shop.version(&self.service)?;
        Ok(match (ensure("version", running.as_ref(), &self.version), running) {
            (Ensured::Already(reason), _) => Plan::noop(reason),
            (Ensured::Needed, None) => {
                Plan::create(format_args!("service {} at {}", self.service, self.version))
            }
            (Ensured::Needed, Some(_)) => {
                Plan::update(format_args!("service {} to {}", self.service, self.version))
                    .also("restart 2 instances")
            }
        })
    }

    fn apply(&self, op: Op<'_, Shop>) -> Result<Applied<Service>, Fault> {
        let running = op.world().version(&self.service)?;
        let service = Service { service: self.service.clone(), current_version: self.version.clone() };
        if let Ensured::Already(reason) = ensure("version", running.as_ref(), &self.version) {
            return Ok(Applied::noop(reason, service));
        }
        let (shop, dispatched) = op.dispatch()?;
        shop.deploy(&service)?;
        Ok(if running.is_some() { dispatched.updated(service) } else { dispatched.created(service) })
    }
}
