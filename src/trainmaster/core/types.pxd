# Names for what compiled functions take: whole numbers, and contiguous arrays of one or two dimensions.
ctypedef long long i64
ctypedef long long[::1] I1
ctypedef long long[:, ::1] I2
ctypedef double[::1] F1
ctypedef double[:, ::1] F2
ctypedef unsigned char[::1] B1
ctypedef unsigned char[:, ::1] B2
ctypedef float[::1] S1
ctypedef float[:, ::1] S2
ctypedef double[:, :, ::1] F3
# The same, of arrays that are only read: columns of a snapshot are read-only.
ctypedef const long long[::1] RI1
ctypedef const double[::1] RF1
ctypedef const double[:, ::1] RF2
ctypedef const unsigned char[::1] RB1
ctypedef const unsigned char[:, ::1] RB2
