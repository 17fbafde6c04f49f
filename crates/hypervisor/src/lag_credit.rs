//! stub
use crate::eevdf::{Ent, Error, Fair, RqId};
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagCredit;
impl LagCredit { pub const SERIES_V3: Self = Self; pub(crate) fn check(&self)->Result<(),Error>{Ok(())} }
#[derive(Clone, Debug, Default)]
pub(crate) struct CreditState;
impl Fair { pub(crate) fn credit_yield(&mut self, rq: RqId, _p: Ent)->Option<RqId>{ self.yield_step(rq); None } }
