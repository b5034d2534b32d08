# Names for what compiled functions take: whole numbers, and contiguous arrays of one or two dimensions.
ctypedef long long i64
ctypedef long long[::1] I1
ctypedef long long[:, ::1] I2
ctypedef double[::1] F1
ctypedef double[:, ::1] F2
ctypedef unsigned char[::1] B1
ctypedef unsigned char[:, ::1] B2
