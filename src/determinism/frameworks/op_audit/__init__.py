"""What the audits of ops share: arrays that provoke, counting results, and talking to the process that asked."""
