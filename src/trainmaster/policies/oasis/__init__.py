"""OASiS (Bao et al., INFOCOM 2018): online admission and elastic worker/PS schedules by primal-dual prices."""
